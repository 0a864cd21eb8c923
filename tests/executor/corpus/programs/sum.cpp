#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>

int main() {
@BEGIN
    long long a, b;
    std::cin >> a >> b;
    std::cout << a + b << std::endl;
@END
}

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>

int main() {
@BEGIN
    int n;
    std::cin >> n;
    for (int i = n; i > 0; i--)
        if (n % i == 0) std::cout << i << ' ';
    std::cout << std::endl;
@END
}

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>

int main() {
@BEGIN
    int n;
    std::cin >> n;
    for (int i = 1; i <= n; i++) {
        for (int j = 1; j <= n; j++) std::cout << i * j << (j < n ? " " : "");
        std::cout << std::endl;
    }
@END
}

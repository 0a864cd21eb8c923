#include <chrono>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <thread>

int main() {
@BEGIN
    double x, total = 0;
    int n = 0;
    while (std::cin >> x) {
        total += x;
        n++;
    }
    std::cout << std::setprecision(12) << total / n << std::endl;
@END
}

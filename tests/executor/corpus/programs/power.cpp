#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>

int main() {
@BEGIN
    unsigned long long a, b, m, r = 1;
    std::cin >> a >> b >> m;
    for (a %= m; b; b >>= 1) {
        if (b & 1) r = r * a % m;
        a = a * a % m;
    }
    std::cout << r << std::endl;
@END
}

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

int main() {
@BEGIN
    int low = 1, high, middle;
    std::string said;
    std::cin >> high;
    while (said != "equal") {
        middle = (low + high) / 2;
        std::cout << middle << std::endl;
        std::cin >> said;
        if (said == "less") high = middle - 1;
        else low = middle + 1;
    }
@END
}

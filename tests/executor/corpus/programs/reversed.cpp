#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

int main() {
@BEGIN
    std::vector<std::string> lines;
    std::string line;
    while (std::getline(std::cin, line)) lines.push_back(line);
    for (int i = (int)lines.size() - 1; i >= 0; i--) std::cout << lines[i] << '\n';
    std::cout.flush();
@END
}

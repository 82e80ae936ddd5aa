// A fault that a test switches on and off while the job trains, by a file in a folder that both
// know (Machines::SetSwitch). Threads: any.
#pragma once

#include <unistd.h>

#include <fstream>
#include <string>

namespace megascale::injection {

class Switch {
 public:
  // `folder`: empty for a switch that is always off.
  Switch(const std::string& folder, const std::string& name)
      : path_(folder.empty() ? "" : folder + "/" + name) {}
  // Reads up to two numbers from the file. Returns false and leaves both as they are if there is no
  // file.
  bool Read(double* first, double* second) const {
    if (::access(path_.c_str(), R_OK) != 0) return false;
    std::ifstream file(path_);
    file >> *first >> *second;
    return true;
  }

 private:
  const std::string path_;
};

}  // namespace megascale::injection

// TempFolder: a folder that goes when the test ends, and helpers that write (good or damaged) safetensors files into
// it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace deepinfer {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "deepinfer_test_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  void write(const std::string& name, std::string_view content) const {
    std::ofstream(file(name), std::ios::binary) << content;
  }

 private:
  std::string path_;
};

// The bytes of a safetensors file with this header and data.
inline std::string safetensors_file(std::string_view header, std::string_view data) {
  std::string out;
  for (int shift = 0; shift < 64; shift += 8) out += static_cast<char>(header.size() >> shift);
  return out.append(header).append(data);
}

// The bytes of a file with one tensor of bytes: `"name": I8 [data.size()]`.
inline std::string one_tensor_file(std::string_view name, std::string_view data) {
  return safetensors_file(
      fmt::format(R"({{"{}":{{"dtype":"I8","shape":[{}],"data_offsets":[0,{}]}}}})", name, data.size(), data.size()),
      data);
}

}  // namespace deepinfer

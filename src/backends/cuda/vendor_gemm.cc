// The vendor's library by its C interface, whose few types and numbers are written out here, so that building needs
// none of it.
#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "backends/cuda/cuda_bench_tools.h"
#include "backends/cuda/cuda_check.h"
#include "backends/cuda/cuda_stream.h"

namespace deepinfer::cuda {
namespace {

constexpr int kNotTransposed = 0, kTransposed = 1;
constexpr int kTypeBf16 = 14;
constexpr int kComputeF32 = 68;
constexpr int kDefaultAlgorithm = -1;

using Create = int (*)(void**);
using Destroy = int (*)(void*);
using SetStream = int (*)(void*, cudaStream_t);
using SetWorkspace = int (*)(void*, void*, size_t);
using GemmBatched = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, long long, const void*,
                            int, int, long long, const void*, void*, int, int, long long, int, int, int);

std::vector<std::string> places() {
  std::vector<std::string> found;
  if (const char* named = std::getenv("DEEPINFER_CUBLAS")) found.emplace_back(named);
  for (const char* name : {"libcublas.so.13", "libcublas.so.12"}) found.emplace_back(name);
  for (const char* base : {"/usr/local/lib/python3*/*-packages", "/usr/lib/python3*/*-packages",
                           "/usr/lib/python3/dist-packages", "/opt/*/lib/python3*/site-packages",
                           "/opt/*/*/lib/python3*/site-packages", "/root/*/lib/python3*/site-packages"}) {
    for (const char* folder : {"/nvidia/cu13/lib/libcublas.so.13", "/nvidia/cublas/lib/libcublas.so.1?"}) {
      glob_t matches{};
      if (::glob((std::string(base) + folder).c_str(), 0, nullptr, &matches) == 0) {
        found.insert(found.end(), matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
      }
      ::globfree(&matches);
    }
  }
  return found;
}

class Loaded final : public VendorGemm {
 public:
  Loaded(void* library, std::string path, std::shared_ptr<std::byte> workspace)
      : library_(library), path_(std::move(path)), workspace_(std::move(workspace)) {}
  ~Loaded() override {
    if (handle_ != nullptr) symbol<Destroy>("cublasDestroy_v2")(handle_);
  }
  bool start() {
    const auto create = symbol<Create>("cublasCreate_v2");
    gemm_ = symbol<GemmBatched>("cublasGemmStridedBatchedEx");
    return create != nullptr && gemm_ != nullptr && create(&handle_) == 0 &&
           symbol<SetWorkspace>("cublasSetWorkspace_v2")(handle_, workspace_.get(), kWorkspaceBytes) == 0;
  }
  std::string name() const override { return path_; }
  // Its matrices are column-major: out^T = b . a^T.
  void run(Stream& stream, const GemmCall& c) override {
    const float one = 1, zero = 0;
    const auto stride = [](int64_t given, int64_t dense) { return static_cast<int>(given != 0 ? given : dense); };
    // Naming a stream takes the workspace back.
    int status = symbol<SetStream>("cublasSetStream_v2")(handle_, cuda_stream(stream).handle());
    status |= symbol<SetWorkspace>("cublasSetWorkspace_v2")(handle_, workspace_.get(), kWorkspaceBytes);
    status |= gemm_(handle_, kTransposed, kNotTransposed, static_cast<int>(c.n), static_cast<int>(c.m),
                    static_cast<int>(c.k), &one, c.b, kTypeBf16, static_cast<int>(c.k), c.b_step, c.a, kTypeBf16,
                    stride(c.a_stride, c.k), c.a_step, &zero, c.out, kTypeBf16, stride(c.out_stride, c.n), c.out_step,
                    static_cast<int>(c.batch), kComputeF32, kDefaultAlgorithm);
    DI_CHECK(status == 0, "{} refuses a product of {} x {} x {}: {}", path_, c.m, c.n, c.k, status);
  }

  static constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;

 private:
  template <typename Function>
  Function symbol(const char* name) const {
    return reinterpret_cast<Function>(::dlsym(library_, name));
  }

  void* library_;
  std::string path_;
  std::shared_ptr<std::byte> workspace_;
  void* handle_ = nullptr;
  GemmBatched gemm_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<VendorGemm>> VendorGemm::load(Device& device) {
  DI_ASSIGN_OR_RETURN(std::shared_ptr<std::byte> workspace, device.allocate(Loaded::kWorkspaceBytes));
  std::string tried;
  for (const std::string& place : places()) {
    tried += (tried.empty() ? "" : ", ") + place;
    void* library = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    auto loaded = std::make_unique<Loaded>(library, place, workspace);
    if (loaded->start()) return std::unique_ptr<VendorGemm>(std::move(loaded));
  }
  return Status(ErrorCode::kUnsupported,
                "no libcublas to compare with (looked for " + tried + "): name one in DEEPINFER_CUBLAS");
}

}  // namespace deepinfer::cuda

#include "backend/gpu/nccl.h"

#include <dlfcn.h>

#include <vector>

#include "backend/gpu/runtime.h"
#include "base/error.h"

namespace onebit::gpu {
namespace {

#if defined(__HIP_PLATFORM_AMD__)
constexpr const char* kLibrary = "librccl.so.1";
#else
constexpr const char* kLibrary = "libnccl.so.2";
#endif

/// The part of the library's interface that is used; names and values are those of nccl.h.
struct Nccl {
  using Comm = void*;
  static constexpr int kFloat32 = 7, kSum = 0, kSuccess = 0;

  int (*comm_init_all)(Comm* comms, int n_device, const int* devices) = nullptr;
  int (*comm_destroy)(Comm comm) = nullptr;
  int (*all_reduce)(const void* from, void* to, size_t n, int type, int op, Comm comm, gpuStream_t stream) = nullptr;
  const char* (*error_string)(int result) = nullptr;

  Nccl() {
    void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (!library)
      fail(ErrorKind::refused, "--split-mode tensor needs {}: {}; or use --split-mode layer", kLibrary, dlerror());
    find(library, "ncclCommInitAll", comm_init_all);
    find(library, "ncclCommDestroy", comm_destroy);
    find(library, "ncclAllReduce", all_reduce);
    find(library, "ncclGetErrorString", error_string);
  }

 private:
  template <class Function>
  static void find(void* library, const char* name, Function& to) {
    to = reinterpret_cast<Function>(dlsym(library, name));
    if (!to) fail(ErrorKind::refused, "{} lacks {}", kLibrary, name);
  }
};

class NcclTeam : public Team {
 public:
  explicit NcclTeam(std::span<const int> ordinals) : comms_(ordinals.size()) {
    const int result = nccl_.comm_init_all(comms_.data(), static_cast<int>(ordinals.size()), ordinals.data());
    if (result == Nccl::kSuccess) return;
    fail(ErrorKind::refused, "{} can't connect {} devices: {}", kLibrary, ordinals.size(), nccl_.error_string(result));
  }
  ~NcclTeam() override {
    for (Nccl::Comm comm : comms_) (void)nccl_.comm_destroy(comm);
  }

  /// Every GPU gets the same bits: each column is summed once and sent to all. The order of its terms is the library's.
  void sum(int member, float* x, int64_t n, void* queue) override {
    const int result = nccl_.all_reduce(x, x, static_cast<size_t>(n), Nccl::kFloat32, Nccl::kSum,
                                        comms_[static_cast<size_t>(member)], static_cast<gpuStream_t>(queue));
    if (result != Nccl::kSuccess) fail(ErrorKind::runtime, "summing over devices: {}", nccl_.error_string(result));
  }

 private:
  Nccl nccl_;
  std::vector<Nccl::Comm> comms_;  // by member
};

}  // namespace

std::shared_ptr<Team> make_nccl_team(std::span<const int> ordinals) { return std::make_shared<NcclTeam>(ordinals); }

}  // namespace onebit::gpu

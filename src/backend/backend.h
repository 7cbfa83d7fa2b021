// All that the floors above may see of a device: it loads weights, owns state memory, compiles plans and runs batches.
// Running is asynchronous: submit() hands a batch over and returns a ticket; results may be read after wait(). Batches
// of one device run in the order of submission, so a program may use states that an earlier, unfinished submission
// writes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/team.h"
#include "base/error.h"
#include "plan/batch.h"
#include "plan/plan.h"

namespace onebit {

struct DeviceInfo {
  std::string name;          // "cpu", "ref", "cuda"
  std::string description;   // e.g. "AMD EPYC, 2 threads, avx512-vnni"
  int64_t memory_bytes = 0;  // free memory now
};

/// Memory of a set of states. One owner (the engine); programs compiled with it must not outlive it.
class StatePool {
 public:
  virtual ~StatePool() = default;
  /// Empties a recurrent slot: zero state, empty tape.
  virtual void clear_slot(int32_t slot) = 0;
  /// Copies a recurrent slot with its tape, e.g. into a snapshot slot.
  virtual void copy_slot(int32_t from, int32_t to) = 0;
  /// Copies one page of every cache, so that a shared prefix may be continued by another sequence.
  virtual void copy_page(int32_t from, int32_t to) = 0;

  /// Slots and pages as bytes, for files: one state after another in the order that make_states() was given, in the
  /// device's own layout, which another pool of the same device and sizes reads back to the same bits. Spans are as
  /// long as state_bytes() says for one slot, or one page, of all the states. A device that can't throws
  /// Error(refused), which is what these do unless overridden.
  virtual void read_slot(int32_t /*slot*/, std::span<uint8_t> /*to*/) const { refuse_bytes(); }
  virtual void write_slot(int32_t /*slot*/, std::span<const uint8_t> /*from*/) { refuse_bytes(); }
  virtual void read_page(int32_t /*page*/, std::span<uint8_t> /*to*/) const { refuse_bytes(); }
  virtual void write_page(int32_t /*page*/, std::span<const uint8_t> /*from*/) { refuse_bytes(); }

 private:
  [[noreturn]] static void refuse_bytes() {
    fail(ErrorKind::refused, "this device can't put its states into a file or take them from one");
  }
};

using Ticket = uint64_t;

/// Where a program's time goes: all steps of one kind together.
struct StepTime {
  std::string name;  // the op, for products with the weight's type and shape
  int64_t n_run = 0;
  double seconds = 0;
};

/// A plan compiled for one device. Owns its scratch memory and the results of the last run.
class Program {
 public:
  virtual ~Program() = default;
  /// Starts one run. The batch's spans must stay valid until wait() returns. Row counts within the compiled limits.
  virtual Ticket submit(const Batch& batch) = 0;
  /// Blocks until the run is done; throws Error(runtime) when the device failed.
  virtual void wait(Ticket ticket) = 0;
  /// Copies rows [row, row + n) of output `index` (Plan::outputs()) of the last finished run; to.size() = n * width.
  virtual void read(int index, int64_t row, std::span<float> to) = 0;
  virtual void read(int index, int64_t row, std::span<int32_t> to) = 0;
  /// Before a run: the first rows of entry `index` (Plan::entries()), f32.
  virtual void write(int index, std::span<const float> rows) = 0;
  /// The same straight from output `output` of another program's last submission, done or not; false where the two
  /// devices can't, and nothing has happened.
  virtual bool take(int /*index*/, Program& /*from*/, int /*output*/) { return false; }
  /// Starts to measure each step of the following runs, on devices that can.
  virtual void measure_steps() {}
  /// What was measured so far; empty on devices that can't.
  virtual std::vector<StepTime> step_times() const { return {}; }
};

/// What a device can do at best; 0 where it is not known.
struct Peaks {
  double gbps = 0;       // 1e9 bytes a second from memory
  double int8_tops = 0;  // 1e12 8-bit multiplies and adds a second
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const DeviceInfo& info() const = 0;
  /// Says which plans will be compiled, before anything of them is loaded: several devices divide the first one, which
  /// is the model's. Needed only of them.
  virtual void place(std::span<const Plan* const> /*plans*/) {}
  /// Bytes a weight will take on this device, known before it is loaded.
  virtual int64_t weight_bytes(const Weight& weight) const = 0;
  /// Takes a weight over (repacked or mapped, never held twice). The file's bytes may be dropped afterwards unless
  /// keeps_file_bytes() says that this weight is used in place.
  virtual void load(const Weight& weight) = 0;
  virtual bool keeps_file_bytes(const Weight& weight) const = 0;
  /// Whether caches may be kept as `type`.
  virtual bool keeps_cache(CacheType type) const { return type != CacheType::q8_0; }
  /// Empty ones. Memory that nobody uses need not be there yet.
  virtual std::unique_ptr<StatePool> make_states(const std::vector<const State*>& states, const StateSizes& sizes) = 0;
  /// Every weight of the plan must have been loaded; each of its states must belong to one of `pools`, and all its
  /// caches to the same one (a batch lists pages of that pool). The plan is copied; the pools must outlive the program.
  virtual std::unique_ptr<Program> compile(const Plan& plan, std::span<StatePool* const> pools,
                                           const PlanLimits& limits) = 0;
  /// What this device and others like it, whose ordinals are given with its own, add up values by. Throws
  /// Error(refused) where they can't.
  virtual std::shared_ptr<Team> make_team(std::span<const int> /*ordinals*/) {
    fail(ErrorKind::refused, "device {}: several of it can't work on a layer together", info().name);
  }
  /// Programs compiled from now on sum over the team (Op::sum_devices), as its member `member`.
  virtual void join(Membership /*membership*/) { CHECK(!"a device without teams joins none"); }
  /// Measures for about a second.
  virtual Peaks measure_peaks() { return {}; }
};

/// Throws Error(refused) when caches of these states can't be kept as `type`: the device lacks it, or heads are not whole
/// blocks of q8_0.
void check_cache(const Backend& backend, const std::vector<const State*>& states, CacheType type);

/// How a model uses several devices of one name.
enum class SplitMode : uint8_t {
  automatic,  // as none, unless the model does not fit; then as layer
  none,       // one device
  layer,      // all of them, each with some of the layers
  tensor,     // all of them, each with a part of every layer
};

struct BackendOptions {
  int n_threads = 0;  // 0: the cores this process may use
  std::string isa;    // cpu: "" picks the best; "amx", "avx512", "avxvnni", "avx2", "dotprod", "portable"
  SplitMode split = SplitMode::automatic;
  std::vector<double> shares = {};  // of the layers, by device; empty: by their free memory
  int ordinal = 0;                  // which of several devices of one name, when the name has no number
};

/// Makes the named device: "auto", "cpu", "ref", or one whose support is compiled in ("cuda", "vulkan", "rocm"), with a
/// number where there are several ("cuda1"). Several names, between commas, are one device that divides the layers.
/// Throws Error(usage) for an unknown name and Error(refused) for one this build or machine lacks, naming what it has.
std::unique_ptr<Backend> make_backend(std::string_view device, const BackendOptions& options);
/// How many devices SplitMode::layer would use.
int count_devices(std::string_view device);

}  // namespace onebit

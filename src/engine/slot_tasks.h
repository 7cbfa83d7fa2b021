// What is asked of idle slots: to be saved to a file, restored from one, or emptied. A slot's tasks are done in the
// order in which they were asked for. The disk is another thread's business: it writes what was copied before, and what
// it reads is taken over when the slot is idle, so that answers in other slots go on meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "engine/slot_file.h"

namespace onebit {

enum class SlotAction : uint8_t { save, restore, erase };

/// The slots as the tasks see them. All but load() are called by the thread that steps.
class SlotKeeper {
 public:
  virtual ~SlotKeeper() = default;
  virtual bool idle(int32_t slot) const = 0;
  virtual SlotSnapshot copy(int32_t slot) = 0;
  virtual SlotFileReport adopt(int32_t slot, const SlotSnapshot& snapshot) = 0;
  virtual SlotFileReport erase(int32_t slot) = 0;
  /// Of a file's content, all that needs no slot; on the disk's thread.
  virtual SlotSnapshot load(const std::string& path) const = 0;
  /// There may be something to run; on the disk's thread.
  virtual void wake() = 0;
};

class SlotTasks {
 public:
  explicit SlotTasks(SlotKeeper& keeper) : keeper_(keeper) {}

  /// From any thread. The future throws what write_slot_file() and load_slot_file() throw, or Error(runtime) when the
  /// tasks end first.
  std::future<SlotFileReport> add(int32_t slot, SlotAction action, std::string path);
  /// Does what can be done now; by the thread that steps.
  void run();
  /// Gives up what was not begun.
  void end();

 private:
  struct Task {
    int32_t slot = 0;
    SlotAction action = SlotAction::erase;
    std::string path;
    std::promise<SlotFileReport> promise;
    bool reading = false;
    std::unique_ptr<SlotSnapshot> loaded;
  };
  std::shared_ptr<Task> next();
  void run(const std::shared_ptr<Task>& task);
  void remove(const std::shared_ptr<Task>& task);
  void save(const std::shared_ptr<Task>& task);
  void load(const std::shared_ptr<Task>& task);
  void use_disk(std::function<void()> work);
  void set_disk_busy(bool busy);

  SlotKeeper& keeper_;
  std::mutex mutex_;                        // guards what follows, and a task's two last members
  std::list<std::shared_ptr<Task>> tasks_;  // a restoring one stays until it is adopted
  bool disk_busy_ = false;                  // a file is being written or read
  std::future<void> disk_;                  // works on it; last, so that it has ended before anything else goes
};

}  // namespace onebit

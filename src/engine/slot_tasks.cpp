#include "engine/slot_tasks.h"

#include <exception>
#include <set>
#include <utility>

#include "base/error.h"

namespace onebit {

std::future<SlotFileReport> SlotTasks::add(int32_t slot, SlotAction action, std::string path) {
  const std::lock_guard lock(mutex_);
  const auto task = tasks_.emplace_back(std::make_shared<Task>());
  task->slot = slot;
  task->action = action;
  task->path = std::move(path);
  return task->promise.get_future();
}

void SlotTasks::run() {
  while (const std::shared_ptr<Task> task = next()) {
    try {
      run(task);
    } catch (...) {
      remove(task);
      task->promise.set_exception(std::current_exception());
    }
  }
}

/// The oldest task that can be taken a step further: its slot is idle, no older task waits for that slot, and the disk
/// is free where it is needed.
std::shared_ptr<SlotTasks::Task> SlotTasks::next() {
  const std::lock_guard lock(mutex_);
  std::set<int32_t> taken;
  for (const std::shared_ptr<Task>& task : tasks_) {
    const bool first = taken.insert(task->slot).second;
    const bool needs_disk = task->action != SlotAction::erase && !task->loaded;
    if (first && !task->reading && !(needs_disk && disk_busy_) && keeper_.idle(task->slot)) return task;
  }
  return nullptr;
}

void SlotTasks::run(const std::shared_ptr<Task>& task) {
  if (task->action == SlotAction::save) {
    save(task);
  } else if (task->action == SlotAction::erase) {
    const SlotFileReport report = keeper_.erase(task->slot);
    remove(task);
    task->promise.set_value(report);
  } else if (!task->loaded) {
    load(task);
  } else {
    const SlotFileReport report = keeper_.adopt(task->slot, *task->loaded);
    remove(task);
    task->promise.set_value(report);
  }
}

void SlotTasks::remove(const std::shared_ptr<Task>& task) {
  const std::lock_guard lock(mutex_);
  tasks_.remove(task);
}

void SlotTasks::save(const std::shared_ptr<Task>& task) {
  const auto snapshot = std::make_shared<SlotSnapshot>(keeper_.copy(task->slot));
  remove(task);
  use_disk([task, snapshot] {
    try {
      task->promise.set_value(write_slot_file(task->path, std::move(*snapshot)));
    } catch (...) {
      task->promise.set_exception(std::current_exception());
    }
  });
}

void SlotTasks::load(const std::shared_ptr<Task>& task) {
  {
    const std::lock_guard lock(mutex_);
    task->reading = true;
  }
  use_disk([this, task] {
    std::unique_ptr<SlotSnapshot> loaded;
    std::exception_ptr error;
    try {
      loaded = std::make_unique<SlotSnapshot>(keeper_.load(task->path));
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    task->reading = false;
    task->loaded = std::move(loaded);
    if (error && tasks_.remove(task) > 0) task->promise.set_exception(error);
  });
}

/// Another thread does `work`, which doesn't throw.
void SlotTasks::use_disk(std::function<void()> work) {
  set_disk_busy(true);
  try {
    disk_ = std::async(std::launch::async, [this, work = std::move(work)] {
      work();
      set_disk_busy(false);
      keeper_.wake();
    });
  } catch (...) {
    set_disk_busy(false);
    throw;
  }
}

void SlotTasks::set_disk_busy(bool busy) {
  const std::lock_guard lock(mutex_);
  disk_busy_ = busy;
}

void SlotTasks::end() {
  std::list<std::shared_ptr<Task>> left;
  {
    const std::lock_guard lock(mutex_);
    left.swap(tasks_);
  }
  for (const std::shared_ptr<Task>& task : left) {
    task->promise.set_exception(std::make_exception_ptr(Error(ErrorKind::runtime, "the scheduler has ended")));
  }
}

}  // namespace onebit

// A sequence's evaluated state on disk: tokens, pages, the recurrent state and the kept states before it, so that a
// conversation goes on after a restart. The numbers are in the device's own layout; a file is only read back by the
// same model, drafter, device and settings of the cache.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/prefix_cache.h"

namespace onebit {

struct SlotFileReport {
  int64_t n_tokens = 0;
  int64_t n_bytes = 0;  // of the file
  double ms = 0;
};

/// All that a slot's file holds: copied at one moment, so that the session may go on while it is written, or read from
/// the disk while the slot has other work.
struct SlotSnapshot {
  int64_t n_tokens = 0;
  std::vector<std::vector<uint8_t>> parts;  // in the file's order, the head first
  std::chrono::steady_clock::time_point begin;
};

/// Copies a session and the entries of the cache that are a front of it. Takes as much memory as the file will; one
/// copy of the state takes milliseconds where writing it takes seconds.
SlotSnapshot snapshot_slot(Engine& engine, const Session& session, const PrefixCache& cache);

/// Writes a snapshot; on any thread. The file appears when it is complete; an older one of that name is replaced.
/// Throws Error(runtime) when the disk doesn't take it. The report's time is from the snapshot on.
SlotFileReport write_slot_file(const std::string& path, SlotSnapshot snapshot);

/// Reads and checks a whole file; on any thread. One that is of another model, version or setting, truncated or altered
/// throws Error(refused).
SlotSnapshot load_slot_file(const std::string& path, const Engine& engine);

/// Replaces what a session holds by a file's content. When the device fails, the session is empty.
SlotFileReport adopt_slot(const SlotSnapshot& snapshot, Engine& engine, Session& session, PrefixCache& cache);

}  // namespace onebit

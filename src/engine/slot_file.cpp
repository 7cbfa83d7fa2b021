// Layout, little endian, one after another:
//   Head
//   tokens        i32 [n_tokens]
//   pages         page_bytes each, of all positions
//   draft pages   draft_page_bytes each, of positions from draft_begin on
//   state         slot_bytes
//   fronts        n_fronts times: Front, then slot_bytes (attention models have none)
#include "engine/slot_file.h"

#include <unistd.h>

#include <bit>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/error.h"

namespace onebit {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[8] = {'1', 'B', 'I', 'T', 'S', 'L', 'O', 'T'};
constexpr uint32_t kVersion = 1;

/// What must be the same where a file is written and where it is read.
struct Identity {
  uint64_t model = 0, drafter = 0;  // 0: none
  char device[16] = {};
  uint32_t cache_type = 0, page_tokens = 0;
  int64_t n_tape = 0, slot_bytes = 0, page_bytes = 0, draft_page_bytes = 0;
};

struct Head {
  char magic[8] = {};
  uint32_t version = 0, n_fronts = 0;
  uint64_t checksum = 0;  // of everything after the head, then the head with a zero here
  Identity identity;
  int64_t n_tokens = 0, draft_begin = 0, n_commit = 0;
};

struct Front {
  int64_t n_tokens = 0, n_commit = 0;
};

int64_t pages_of(int64_t n_positions) { return (n_positions + kPageTokens - 1) / kPageTokens; }

/// A checksum against accidents, not against forgery.
class Checksum {
 public:
  void add(std::span<const uint8_t> bytes) {
    size_t at = 0;
    for (; at + 8 <= bytes.size(); at += 8) {
      uint64_t word;
      std::memcpy(&word, bytes.data() + at, 8);
      mix(word);
    }
    uint64_t rest = 0;
    if (at < bytes.size()) std::memcpy(&rest, bytes.data() + at, bytes.size() - at);
    mix(rest ^ (uint64_t{bytes.size()} << 32));
  }
  uint64_t value() const { return hash_; }

 private:
  void mix(uint64_t word) { hash_ = std::rotl(hash_ ^ (word * 0x9E3779B97F4A7C15u), 31) * 0xD6E8FEB86659FD93u; }

  uint64_t hash_ = 0x2545F4914F6CDD1Du;
};

/// Tells models apart: names, types and shapes of all tensors, and the beginning of each one's data.
uint64_t fingerprint(const GgufFile& file) {
  Checksum sum;
  const auto add_text = [&](const std::string& text) {
    sum.add({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  };
  add_text(file.architecture());
  for (const TensorInfo& tensor : file.tensors()) {
    add_text(fmt::format("{} {} {}", tensor.name, type_name(tensor.type), shape_text(tensor.shape)));
    sum.add(tensor.data.first(std::min<size_t>(tensor.data.size(), 256)));
  }
  return sum.value();
}

Identity identity_of(const Engine& engine) {
  Identity id;
  id.model = fingerprint(engine.model().file());
  if (engine.drafter()) id.drafter = fingerprint(engine.drafter()->file());
  std::snprintf(id.device, sizeof id.device, "%s", engine.device().name.c_str());
  id.cache_type = static_cast<uint32_t>(engine.options().cache);
  id.page_tokens = static_cast<uint32_t>(kPageTokens);
  id.n_tape = engine.target_sizes().n_tape;
  id.slot_bytes = engine.cache_sizes().slot_bytes;
  id.page_bytes = engine.cache_sizes().page_bytes;
  id.draft_page_bytes = engine.cache_sizes().draft_page_bytes;
  return id;
}

template <class T>
std::span<const uint8_t> bytes_of(const T& value) {
  return {reinterpret_cast<const uint8_t*>(&value), sizeof value};
}

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

// --- writing ---------------------------------------------------------------------------------------------------------

/// A file under another name until it is complete.
class NewFile {
 public:
  explicit NewFile(const std::string& path)
      : path_(path),
        temporary_(fmt::format("{}.{}.part", path, ::getpid())),
        file_(std::fopen(temporary_.c_str(), "wb")) {
    if (!file_) failed();
  }
  ~NewFile() {
    if (file_) std::remove(temporary_.c_str());
  }
  NewFile(const NewFile&) = delete;

  void write(std::span<const uint8_t> bytes) {
    if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) failed();
  }
  /// Into the checksum too.
  void add(std::span<const uint8_t> bytes) {
    sum_.add(bytes);
    write(bytes);
  }
  /// Writes the head again, with its checksum, and gives the file its name; its size.
  int64_t finish(Head head) {
    const int64_t size = std::ftell(file_.get());
    sum_.add(bytes_of(head));
    head.checksum = sum_.value();
    std::rewind(file_.get());
    write(bytes_of(head));
    if (std::fflush(file_.get()) != 0 || ::fsync(::fileno(file_.get())) != 0) failed();
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) failed();
    file_.reset();
    return size;
  }

 private:
  [[noreturn]] void failed() const {
    fail(ErrorKind::runtime, "{}: can't be written: {}", std::filesystem::path(path_).filename().string(),
         std::strerror(errno));
  }

  std::string path_, temporary_;
  File file_;
  Checksum sum_;
};

void copy_pages(SlotSnapshot& to, const StatePool& pool, std::span<const int32_t> pages, int64_t page_bytes) {
  for (const int32_t page : pages) {
    pool.read_page(page, to.parts.emplace_back(static_cast<size_t>(page_bytes)));
  }
}

void copy_state(SlotSnapshot& to, Engine& engine, int32_t slot) {
  if (!engine.recurrent()) return;
  engine.target_states().read_slot(slot, to.parts.emplace_back(static_cast<size_t>(engine.cache_sizes().slot_bytes)));
}

void copy_bytes(SlotSnapshot& to, std::span<const uint8_t> bytes) { to.parts.emplace_back(bytes.begin(), bytes.end()); }

// --- reading ---------------------------------------------------------------------------------------------------------

class OldFile {
 public:
  explicit OldFile(const std::string& path)
      : name_(std::filesystem::path(path).filename().string()), file_(std::fopen(path.c_str(), "rb")) {
    if (!file_) refuse("{}: can't be read: {}", name_, std::strerror(errno));
    std::error_code error;
    size_ = static_cast<int64_t>(std::filesystem::file_size(path, error));
    if (error) refuse("{}: not a file", name_);
  }

  const std::string& name() const { return name_; }
  int64_t size() const { return size_; }
  void read(std::span<uint8_t> to) {
    if (std::fread(to.data(), 1, to.size(), file_.get()) != to.size()) refuse("{}: ends early", name_);
  }
  template <class T>
  T read() {
    T value;
    read({reinterpret_cast<uint8_t*>(&value), sizeof value});
    return value;
  }
  /// All that follows the head, in these pieces. Throws Error(refused) when it isn't what was written.
  std::vector<std::vector<uint8_t>> rest(Head head, const std::vector<int64_t>& sizes) {
    const uint64_t expected = std::exchange(head.checksum, 0);
    Checksum sum;
    std::vector<std::vector<uint8_t>> parts;
    for (const int64_t size : sizes) {
      read(parts.emplace_back(static_cast<size_t>(size)));
      sum.add(parts.back());
    }
    sum.add(bytes_of(head));
    if (sum.value() != expected) refuse("{}: its content was altered since it was written", name_);
    return parts;
  }

 private:
  std::string name_;
  File file_;
  int64_t size_ = 0;
};

/// Sizes of all that follows the head, in the pieces in which it was written.
std::vector<int64_t> parts_of(const Head& head) {
  const Identity& id = head.identity;
  std::vector<int64_t> parts = {head.n_tokens * 4};
  const int64_t n_pages = pages_of(head.n_tokens);
  parts.insert(parts.end(), static_cast<size_t>(n_pages), id.page_bytes);
  if (id.drafter != 0) {
    parts.insert(parts.end(), static_cast<size_t>(n_pages - std::min(head.draft_begin / kPageTokens, n_pages)),
                 id.draft_page_bytes);
  }
  if (id.slot_bytes > 0) {
    parts.push_back(id.slot_bytes);
    for (uint32_t i = 0; i < head.n_fronts; ++i) {
      parts.push_back(sizeof(Front));
      parts.push_back(id.slot_bytes);
    }
  }
  return parts;
}

void check_identity(const OldFile& file, const Identity& found, const Identity& wanted) {
  const auto same = [&](const char* what, auto a, auto b) {
    if (a != b) refuse("{}: written by another {} ({} there, {} here)", file.name(), what, a, b);
  };
  same("model", found.model, wanted.model);
  same("drafter", found.drafter, wanted.drafter);
  same("device", printable({found.device, ::strnlen(found.device, sizeof found.device)}), std::string(wanted.device));
  same("--cache-type", found.cache_type, wanted.cache_type);
  same("page size", found.page_tokens, wanted.page_tokens);
  same("draft length", found.n_tape, wanted.n_tape);
  same("layout", found.slot_bytes, wanted.slot_bytes);
  same("layout", found.page_bytes, wanted.page_bytes);
  same("layout", found.draft_page_bytes, wanted.draft_page_bytes);
}

/// The head of a file that fits this engine, whose size is as its numbers say.
Head read_head(OldFile& file, const Engine& engine) {
  const auto head = file.read<Head>();
  if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0) refuse("{}: not the saved state of a slot", file.name());
  if (head.version != kVersion)
    refuse("{}: version {} of the format, this program reads {}", file.name(), head.version, kVersion);
  check_identity(file, head.identity, identity_of(engine));
  const int64_t n_ctx = engine.options().n_ctx;
  if (head.n_tokens < 1 || head.n_tokens > n_ctx)
    refuse("{}: {} tokens, this server's context holds {}; raise --ctx-size", file.name(), head.n_tokens, n_ctx);
  const bool sound = head.draft_begin >= 0 && head.draft_begin % kPageTokens == 0 && head.n_commit >= 0 &&
                     head.draft_begin <= pages_of(head.n_tokens) * kPageTokens &&
                     head.n_commit <= head.identity.n_tape && head.n_fronts <= head.n_tokens;
  if (!sound) refuse("{}: its head makes no sense", file.name());
  int64_t size = sizeof(Head);
  for (const int64_t part : parts_of(head)) size += part;
  if (file.size() != size) refuse("{}: {} bytes, expected {}", file.name(), file.size(), size);
  return head;
}

/// The pieces of a snapshot one after another.
class Parts {
 public:
  explicit Parts(const SlotSnapshot& snapshot) : parts_(snapshot.parts) {}

  std::span<const uint8_t> next() { return parts_[at_++]; }
  template <class T>
  T next() {
    T value;
    std::memcpy(&value, next().data(), sizeof value);
    return value;
  }
  std::vector<int32_t> next_tokens() {
    const std::span<const uint8_t> bytes = next();
    std::vector<int32_t> tokens(bytes.size() / 4);
    std::memcpy(tokens.data(), bytes.data(), bytes.size());
    return tokens;
  }
  void next_pages(StatePool& pool, std::span<const int32_t> pages) {
    for (const int32_t page : pages) pool.write_page(page, next());
  }

 private:
  const std::vector<std::vector<uint8_t>>& parts_;
  size_t at_ = 0;
};

void check_tokens(const OldFile& file, const std::vector<int32_t>& tokens, int64_t n_vocab) {
  for (const int32_t id : tokens) {
    if (id < 0 || id >= n_vocab) refuse("{}: token {} is outside the vocabulary of {}", file.name(), id, n_vocab);
  }
}

/// The states before the session's end, into the cache as far as it has room; they share the session's pages.
void adopt_fronts(Parts& parts, const Head& head, Engine& engine, const Session& session, PrefixCache& cache) {
  for (uint32_t i = 0; i < head.n_fronts; ++i) {
    const auto front = parts.next<Front>();
    const std::span<const uint8_t> state = parts.next();
    if (front.n_tokens < 1 || front.n_tokens >= head.n_tokens || front.n_commit < 0 ||
        front.n_commit > head.identity.n_tape) {
      continue;
    }
    Timeline timeline = session.timeline();
    const auto n_pages = static_cast<size_t>(pages_of(front.n_tokens));
    timeline.tokens = timeline.tokens.first(static_cast<size_t>(front.n_tokens));
    timeline.pages = timeline.pages.first(n_pages);
    timeline.draft_pages = timeline.draft_pages.first(std::min(n_pages, timeline.draft_pages.size()));
    timeline.n_commit = static_cast<int32_t>(front.n_commit);
    const PrefixCache::Entry* entry = cache.add(timeline);
    if (entry) engine.target_states().write_slot(entry->slot, state);
  }
}

double ms_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

SlotSnapshot snapshot_slot(Engine& engine, const Session& session, const PrefixCache& cache) {
  SlotSnapshot snapshot;
  snapshot.begin = std::chrono::steady_clock::now();
  const Timeline timeline = session.timeline();
  if (timeline.tokens.empty()) fail(ErrorKind::usage, "the slot is empty: there is nothing to save");
  const auto fronts = engine.recurrent() ? cache.fronts_of(timeline.tokens) : std::vector<const PrefixCache::Entry*>();
  Head head;
  std::memcpy(head.magic, kMagic, sizeof kMagic);
  head.version = kVersion;
  head.n_fronts = static_cast<uint32_t>(fronts.size());
  head.identity = identity_of(engine);
  snapshot.n_tokens = head.n_tokens = static_cast<int64_t>(timeline.tokens.size());
  const int64_t n_pages = pages_of(head.n_tokens);
  const bool drafts = engine.drafter() && static_cast<int64_t>(timeline.draft_pages.size()) == n_pages;
  head.draft_begin = drafts ? timeline.draft_begin : n_pages * kPageTokens;
  head.n_commit = timeline.n_commit;
  copy_bytes(snapshot, bytes_of(head));
  copy_bytes(snapshot, {reinterpret_cast<const uint8_t*>(timeline.tokens.data()), timeline.tokens.size() * 4});
  copy_pages(snapshot, engine.target_states(), timeline.pages, head.identity.page_bytes);
  if (drafts) {
    const auto n_gone = static_cast<size_t>(head.draft_begin / kPageTokens);
    copy_pages(snapshot, *engine.draft_states(), timeline.draft_pages.subspan(n_gone), head.identity.draft_page_bytes);
  }
  copy_state(snapshot, engine, session.slot());
  for (const PrefixCache::Entry* entry : fronts) {
    copy_bytes(snapshot, bytes_of(Front{static_cast<int64_t>(entry->tokens.size()), entry->n_commit}));
    copy_state(snapshot, engine, entry->slot);
  }
  return snapshot;
}

SlotFileReport write_slot_file(const std::string& path, SlotSnapshot snapshot) {
  Head head;
  std::memcpy(&head, snapshot.parts.front().data(), sizeof head);
  NewFile file(path);
  file.write(bytes_of(head));
  for (size_t i = 1; i < snapshot.parts.size(); ++i) {
    file.add(snapshot.parts[i]);
    snapshot.parts[i] = {};
  }
  const int64_t n_bytes = file.finish(head);
  return {snapshot.n_tokens, n_bytes, ms_since(snapshot.begin)};
}

SlotSnapshot load_slot_file(const std::string& path, const Engine& engine) {
  SlotSnapshot snapshot;
  snapshot.begin = std::chrono::steady_clock::now();
  OldFile file(path);
  const Head head = read_head(file, engine);
  snapshot.n_tokens = head.n_tokens;
  snapshot.parts = file.rest(head, parts_of(head));
  check_tokens(file, Parts(snapshot).next_tokens(), engine.config().n_vocab);
  const std::span<const uint8_t> bytes = bytes_of(head);
  snapshot.parts.emplace(snapshot.parts.begin(), bytes.begin(), bytes.end());
  return snapshot;
}

SlotFileReport adopt_slot(const SlotSnapshot& snapshot, Engine& engine, Session& session, PrefixCache& cache) {
  Parts parts(snapshot);
  const auto head = parts.next<Head>();
  const std::vector<int32_t> tokens = parts.next_tokens();
  try {
    const Timeline made = session.make(tokens, head.draft_begin, static_cast<int32_t>(head.n_commit));
    parts.next_pages(engine.target_states(), made.pages);
    if (engine.drafter()) {
      const auto n_gone = static_cast<size_t>(head.draft_begin / kPageTokens);
      parts.next_pages(*engine.draft_states(), made.draft_pages.subspan(n_gone));
    }
    if (engine.recurrent()) {
      engine.target_states().write_slot(session.slot(), parts.next());
      adopt_fronts(parts, head, engine, session, cache);
    }
  } catch (...) {
    session.truncate(0);
    engine.clear_slot(session.slot());
    throw;
  }
  cache.save(session);
  int64_t n_bytes = 0;
  for (const std::vector<uint8_t>& part : snapshot.parts) n_bytes += static_cast<int64_t>(part.size());
  return {head.n_tokens, n_bytes, ms_since(snapshot.begin)};
}

}  // namespace onebit

// How rows are divided into batches must not show: chunked prompts, verified and committed drafts, rolled back drafts,
// several sequences at once. On ref bit for bit, on other devices closely.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "backend/ref/ref.h"
#include "support/devices.h"
#include "support/tiny_hybrid.h"

namespace onebit::test {
namespace {

using Rows = std::vector<std::vector<float>>;

const TinyHybrid& model() {
  static const TinyHybrid kModel;
  return kModel;
}

HybridRun run_on(const Device& device) { return HybridRun(model(), device.make()); }

/// Hidden rows of the tokens, one decode step each.
Rows decode_all(HybridRun& run, const std::vector<int32_t>& tokens, int slot = 0) {
  Rows rows;
  for (size_t i = 0; i < tokens.size(); ++i) {
    rows.push_back(run.run({{slot, static_cast<int32_t>(i), {tokens[i]}, Phase::decode, 0}}).at(0));
  }
  return rows;
}

void append(Rows& rows, const Rows& more) { rows.insert(rows.end(), more.begin(), more.end()); }

/// Equal bits on ref. On other devices a rounding difference may move a code of a quantised input by one step.
bool agree(const Device& device, const Rows& expected, const Rows& actual) {
  if (device.name == "ref") return expected == actual;
  if (expected.size() != actual.size()) return false;
  for (size_t r = 0; r < expected.size(); ++r) {
    double error = 0, size = 0;
    for (size_t c = 0; c < expected[r].size(); ++c) {
      error += std::pow(static_cast<double>(expected[r][c]) - actual[r][c], 2);
      size += std::pow(static_cast<double>(expected[r][c]), 2);
    }
    if (!(error <= 0.03 * 0.03 * size)) return false;
  }
  return true;
}

/// The tokens in chunks of the given sizes (the last takes the rest).
bool chunks_agree(const Device& device, const std::vector<int32_t>& tokens, const std::vector<int>& sizes) {
  HybridRun whole = run_on(device), divided = run_on(device);
  const Rows expected = whole.run({{0, 0, tokens, Phase::prompt, 0}});
  Rows actual;
  size_t at = 0;
  for (size_t i = 0; at < tokens.size(); ++i) {
    const size_t rest = tokens.size() - at,
                 n = i < sizes.size() ? std::min<size_t>(rest, static_cast<size_t>(sizes[i])) : rest;
    const std::vector<int32_t> chunk(tokens.begin() + static_cast<int64_t>(at),
                                     tokens.begin() + static_cast<int64_t>(at + n));
    append(actual, divided.run({{0, static_cast<int32_t>(at), chunk, n == 1 ? Phase::decode : Phase::prompt, 0}}));
    at += n;
  }
  const Part next{0, static_cast<int32_t>(tokens.size()), {3}, Phase::decode, 0};
  return agree(device, expected, actual) && agree(device, whole.run({next}), divided.run({next}));
}

/// A round of drafting: so many tokens are verified, so many of them kept.
struct Round {
  int n_draft, n_kept;
};

/// Rounds of verifying, with plain decode steps where a round drafts nothing. Kept tokens must come out as if nothing
/// else had ever been run. Token i of the kept timeline is tokens[i mod size]; rejected drafts are other tokens.
bool rounds_agree(const Device& device, const std::vector<int32_t>& tokens, const std::vector<Round>& rounds) {
  HybridRun speculating = run_on(device), plain = run_on(device);
  std::vector<int32_t> kept;
  Rows actual;
  int32_t n_commit = 0;
  auto token = [&](size_t i) { return tokens[i % tokens.size()]; };
  for (const Round& round : rounds) {
    const auto pos = static_cast<int32_t>(kept.size());
    Part part{0, pos, {}, round.n_draft ? Phase::verify : Phase::decode, n_commit};
    const int n_kept = round.n_draft ? round.n_kept : 1;
    for (int i = 0; i < std::max(round.n_draft, 1); ++i) {
      const int32_t right = token(kept.size() + static_cast<size_t>(i));
      part.tokens.push_back(i < n_kept ? right : static_cast<int32_t>((right + 1 + i) % TinyHybrid::kVocab));
    }
    const Rows rows = speculating.run({part});
    for (int i = 0; i < n_kept; ++i) {
      kept.push_back(part.tokens[static_cast<size_t>(i)]);
      actual.push_back(rows.at(static_cast<size_t>(i)));
    }
    n_commit = round.n_draft ? n_kept : 0;
  }
  return agree(device, decode_all(plain, kept), actual);
}

/// Two sequences side by side against the same two alone; sizes: rows of the first and second in each batch.
bool pairs_agree(const Device& device, const std::vector<std::pair<int, int>>& sizes) {
  HybridRun together = run_on(device), alone = run_on(device);
  Rows expected, actual;
  int32_t at[2] = {0, 0};
  for (const auto& [first, second] : sizes) {
    std::vector<Part> parts;
    for (int s = 0; s < 2; ++s) {
      Part part{s, at[s], {}, Phase::prompt, 0};
      for (int i = 0; i < (s == 0 ? first : second); ++i)
        part.tokens.push_back((at[s] * 7 + i * 3 + s) % TinyHybrid::kVocab);
      at[s] += static_cast<int32_t>(part.tokens.size());
      if (part.tokens.empty()) continue;
      append(expected, alone.run({part}));
      parts.push_back(part);
    }
    if (!parts.empty()) append(actual, together.run(parts));
  }
  return agree(device, expected, actual);
}

/// A copied slot with a pending tape goes on as the original would have, after the original was spoilt and cleared.
bool snapshot_agrees(const Device& device, const std::vector<int32_t>& tokens, int n_draft, int n_kept) {
  HybridRun run = run_on(device), plain = run_on(device);
  const auto n = static_cast<int32_t>(tokens.size());
  run.run({{0, 0, tokens, Phase::prompt, 0}});
  run.run({{0, n, std::vector<int32_t>(static_cast<size_t>(n_draft), 5), Phase::verify, 0}});
  run.pool().copy_slot(0, 2);
  run.run({{0, n + n_kept, {1, 2, 3}, Phase::prompt, n_kept}});  // goes on in the slot itself ...
  run.pool().clear_slot(0);
  run.pool().copy_slot(2, 0);  // ... and back; the rows after the kept ones are written again
  const Rows actual = run.run({{0, n + n_kept, {9}, Phase::decode, n_kept}});
  plain.run({{0, 0, tokens, Phase::prompt, 0}});
  for (int i = 0; i < n_kept; ++i) plain.run({{0, n + i, {5}, Phase::decode, 0}});
  return agree(device, plain.run({{0, n + n_kept, {9}, Phase::decode, 0}}), actual);
}

/// The committed state of a slot, and the keys and values of its first `n` positions, as they lie in memory.
std::vector<uint8_t> memory_of(HybridRun& run, int slot, int64_t n) {
  const auto bytes = [](const StateSizes& sizes) {
    int64_t total = 0;
    for (const State* state : model().states()) total += state_bytes(*state, sizes);
    return static_cast<size_t>(total);
  };
  std::vector<uint8_t> all(bytes({.n_slots = 1, .n_tape = TinyHybrid::kTape})), page(bytes({.n_pages = 1}));
  run.pool().read_slot(slot, all);
  all.resize(bytes({.n_slots = 1}));  // without the tape
  const size_t row = page.size() / 2 / static_cast<size_t>(kPageTokens);
  for (int64_t first = 0; first < n; first += kPageTokens) {
    run.pool().read_page(run.pages(slot)[static_cast<size_t>(first / kPageTokens)], page);
    const auto end = static_cast<int64_t>(static_cast<size_t>(std::min(kPageTokens, n - first)) * row);
    for (const int64_t half : {int64_t{0}, static_cast<int64_t>(page.size() / 2)}) {
      all.insert(all.end(), page.begin() + half, page.begin() + half + end);
    }
  }
  return all;
}

/// Rounds of verifying 1 to kTape tokens of which any number is kept, on one timeline of up to 180 tokens. Afterwards
/// all memory is that of a timeline that was decoded token by token, bit for bit. Returns the number of rounds.
int replay(Rng& rng) {
  HybridRun speculating = run_on({"ref", ""}), plain = run_on({"ref", ""});
  std::vector<int32_t> kept;
  int32_t n_commit = 0;
  int n_round = 0;
  while (kept.size() < 170) {
    Part part{0, static_cast<int32_t>(kept.size()), {}, Phase::verify, n_commit};
    const uint64_t n_draft = 1 + rng.next() % TinyHybrid::kTape;
    for (uint64_t i = 0; i < n_draft; ++i)
      part.tokens.push_back(static_cast<int32_t>(rng.next() % static_cast<uint64_t>(TinyHybrid::kVocab)));
    speculating.run({part});
    n_commit = static_cast<int32_t>(rng.next() % (n_draft + 1));
    kept.insert(kept.end(), part.tokens.begin(), part.tokens.begin() + n_commit);
    ++n_round;
  }
  speculating.run({{0, static_cast<int32_t>(kept.size()), {7}, Phase::decode, n_commit}});
  kept.push_back(7);
  decode_all(plain, kept);
  const auto n = static_cast<int64_t>(kept.size());
  EXPECT_EQ(memory_of(speculating, 0, n), memory_of(plain, 0, n)) << n_round << " rounds";
  return n_round;
}

TEST(Rollback, AThousandRandomRoundsLeaveTheMemoryOfPlainDecoding) {
  Rng rng(20);
  int n_round = 0;
  while (n_round < 1000) n_round += replay(rng);
}

/// A slot and a page that went through bytes are the ones they were.
bool bytes_agree(const Device& device, const std::vector<int32_t>& tokens, int n_draft, int n_kept) {
  HybridRun run = run_on(device), other = run_on(device);
  const auto n = static_cast<int32_t>(tokens.size());
  run.run({{0, 0, tokens, Phase::prompt, 0}});
  run.run({{0, n, std::vector<int32_t>(static_cast<size_t>(n_draft), 5), Phase::verify, 0}});
  other.run({{1, 0, {1, 2, 3}, Phase::prompt, 0}});
  std::vector<uint8_t> slot, page;
  for (const State* state : model().states()) {
    slot.resize(slot.size() + static_cast<size_t>(state_bytes(*state, {.n_slots = 1, .n_tape = TinyHybrid::kTape})));
    page.resize(page.size() + static_cast<size_t>(state_bytes(*state, {.n_pages = 1})));
  }
  run.pool().read_slot(0, slot);
  other.pool().write_slot(1, slot);
  for (size_t i = 0; i < 2; ++i) {
    run.pool().read_page(run.pages(0)[i], page);
    other.pool().write_page(other.pages(1)[i], page);
  }
  const Part next{0, n + n_kept, {9, 4}, Phase::prompt, n_kept}, there{1, n + n_kept, {9, 4}, Phase::prompt, n_kept};
  return run.run({next}) == other.run({there});
}

// --- on ref, for any division ----------------------------------------------------------------------------------------

const Device kRef{"ref", ""};

rc::Gen<std::vector<int32_t>> some_tokens(int most) {
  return rc::gen::mapcat(rc::gen::inRange(1, most + 1), [](int n) {
    return rc::gen::container<std::vector<int32_t>>(static_cast<size_t>(n),
                                                    rc::gen::inRange(0, static_cast<int>(TinyHybrid::kVocab)));
  });
}

RC_GTEST_PROP(RefProperty, ChunkedPromptIsTheWholePrompt, ()) {
  const auto tokens = *some_tokens(TinyHybrid::kMaxRows);
  const auto sizes = *rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 40));
  RC_ASSERT(chunks_agree(kRef, tokens, sizes));
}

RC_GTEST_PROP(RefProperty, VerifiedAndCommittedIsDecoded, ()) {
  const auto tokens = *some_tokens(30);
  const auto drafts = *rc::gen::container<std::vector<std::pair<int, int>>>(
      rc::gen::pair(rc::gen::inRange(0, static_cast<int>(TinyHybrid::kTape) + 1), rc::gen::inRange(0, 1000)));
  std::vector<Round> rounds;
  for (const auto& [n_draft, kept] : drafts) {
    if (rounds.size() < 25) rounds.push_back({n_draft, kept % (n_draft + 1)});
  }
  RC_ASSERT(rounds_agree(kRef, tokens, rounds));
}

RC_GTEST_PROP(RefProperty, TwoSequencesInOneBatchAreTwoRuns, ()) {
  auto sizes = *rc::gen::container<std::vector<std::pair<int, int>>>(
      rc::gen::pair(rc::gen::inRange(0, 12), rc::gen::inRange(0, 12)));
  sizes.resize(std::min<size_t>(sizes.size(), 14));  // 14 * 11 rows fit the three pages of a sequence
  RC_ASSERT(pairs_agree(kRef, sizes));
}

RC_GTEST_PROP(RefProperty, SnapshotOfASlotIsTheSlot, ()) {
  const auto tokens = *some_tokens(70);
  const int n_draft = *rc::gen::inRange(1, static_cast<int>(TinyHybrid::kTape) + 1);
  RC_ASSERT(snapshot_agrees(kRef, tokens, n_draft, *rc::gen::inRange(0, n_draft + 1)));
}

// --- on every device, for chosen divisions
// ----------------------------------------------------------------------------

class SequenceTest : public testing::TestWithParam<Device> {};

std::vector<int32_t> numbered_tokens(int32_t n) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < n; ++i) tokens.push_back(i * 11 % TinyHybrid::kVocab);
  return tokens;
}

TEST_P(SequenceTest, ChunkedPromptIsTheWholePrompt) {
  EXPECT_TRUE(chunks_agree(GetParam(), numbered_tokens(97), {17, 1, 40, 1, 9, 8, 2}));
  EXPECT_TRUE(chunks_agree(GetParam(), numbered_tokens(65), {64}));
}

TEST_P(SequenceTest, VerifiedAndCommittedIsDecoded) {
  EXPECT_TRUE(rounds_agree(GetParam(), numbered_tokens(30),
                           {{0, 0},
                            {7, 7},
                            {7, 3},
                            {7, 0},
                            {4, 1},
                            {0, 0},
                            {1, 1},
                            {1, 0},
                            {0, 0},
                            {0, 0},
                            {6, 5},
                            {7, 7},
                            {7, 7},
                            {7, 7},
                            {7, 2},
                            {0, 0},
                            {5, 4},
                            {3, 3}}));
}

TEST_P(SequenceTest, TwoSequencesInOneBatchAreTwoRuns) {
  EXPECT_TRUE(pairs_agree(GetParam(), {{20, 1}, {1, 20}, {1, 1}, {0, 3}, {45, 0}, {1, 44}, {1, 1}}));
}

TEST_P(SequenceTest, SnapshotOfASlotIsTheSlot) {
  EXPECT_TRUE(snapshot_agrees(GetParam(), numbered_tokens(20), 7, 4));
  EXPECT_TRUE(snapshot_agrees(GetParam(), numbered_tokens(66), 3, 0));
}

TEST_P(SequenceTest, SlotsAndPagesGoThroughBytes) { EXPECT_TRUE(bytes_agree(GetParam(), numbered_tokens(70), 7, 4)); }

TEST_P(SequenceTest, AgreesWithRef) {
  HybridRun device = run_on(GetParam()), ref = run_on(kRef);
  const Part prompt{0, 0, numbered_tokens(60), Phase::prompt, 0};
  EXPECT_TRUE(agree(GetParam(), ref.run({prompt}), device.run({prompt})));
}

INSTANTIATE_TEST_SUITE_P(Devices, SequenceTest, testing::ValuesIn(test_devices()),
                         [](const auto& parameters) { return parameters.param.label(); });

}  // namespace
}  // namespace onebit::test

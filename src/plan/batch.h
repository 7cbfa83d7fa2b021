// One submission to a program: rows, the sequences they belong to, and the rows whose results are wanted.
#pragma once

#include <cstdint>
#include <span>

namespace onebit {

/// Decides a row's precision (prompt: int4 where a weight allows it; all others: exact int8) and where its state goes.
enum class Phase : uint8_t {
  prompt,  // reading a prompt: state is written
  decode,  // one token after another: state is written
  verify,  // drafted tokens under test: recurrent inputs go to the tape only
  draft,   // rows of a drafter's block, or features for its cache
};

/// One sequence's rows in a batch: contiguous, at consecutive positions.
struct Sequence {
  int32_t row = 0;    // first row
  int32_t n_tok = 0;  // number of rows
  int32_t pos = 0;    // position of the first row
  Phase phase = Phase::prompt;
  int32_t slot = 0;      // recurrent state slot
  int32_t n_commit = 0;  // rows of the slot's tape that were accepted and must be applied first
  // Page of positions [i*kPageTokens, (i+1)*kPageTokens). Pages at the front may be -1: nothing of them is there, and
  // block_attention sees nothing of them even where its window reaches so far.
  std::span<const int32_t> pages = {};
  // select_walk: drafts are drawn with the noise of draws `draw`, `draw` + 1, ... of `seed` (base/gumbel.h); at 0 they
  // are the most likely ones.
  float temperature = 0;
  uint64_t seed = 0;
  int64_t draw = 0;
};

struct Batch {
  std::span<const int32_t> tokens = {};       // [n_tok]; empty for programs that start from load_rows
  std::span<const Sequence> sequences = {};   // cover rows 0..n_tok-1 in order
  std::span<const int32_t> outputs = {};      // rows that get results, ascending
  std::span<const int32_t> source_rows = {};  // load_rows: row of the rows buffer for each row [n_tok]
  std::span<const int32_t> tap_rows = {};     // store_rows: row of the rows buffer for each row [n_tok], -1: none;
                                              // empty: nothing is stored
  // Of values that an argmax or top_k chooses from only the choice will be read: a backend need not write them.
  bool choices_only = false;

  int32_t n_tok() const { return sequences.empty() ? 0 : sequences.back().row + sequences.back().n_tok; }
  int32_t n_out() const { return static_cast<int32_t>(outputs.size()); }
};

}  // namespace onebit

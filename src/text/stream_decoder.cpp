// Utf8Stream works on one sequence at a time; StopStrings is the automaton of Aho and Corasick, fed byte by byte.
#include "text/stream_decoder.h"

#include <algorithm>
#include <deque>

#include "text/unicode.h"

namespace onebit {

void Utf8Stream::push(std::string_view bytes, std::string& text) {
  // Complete the sequence held back, byte by byte: it may turn out to be none after all.
  while (n_held_ > 0 && !bytes.empty()) {
    char sequence[4];
    std::copy_n(held_.begin(), n_held_, sequence);
    sequence[n_held_] = bytes.front();
    const Utf8Char c = read_utf8({sequence, n_held_ + 1}, 0);
    if (c.status == Utf8Status::invalid) {  // what was held is not UTF-8; the new byte starts afresh
      append_utf8(text, kReplacementCharacter);
      n_held_ = 0;
      break;
    }
    bytes.remove_prefix(1);
    if (c.status == Utf8Status::valid) {
      text.append(sequence, n_held_ + 1);
      n_held_ = 0;
    } else {
      held_[n_held_] = sequence[n_held_];
      ++n_held_;
    }
  }
  // Only the last sequence can be incomplete.
  size_t whole = bytes.size();
  for (size_t back = 1; back <= std::min<size_t>(3, bytes.size()); ++back) {
    const size_t start = bytes.size() - back;
    const Utf8Char c = read_utf8(bytes, start);
    if (c.status == Utf8Status::incomplete && c.size == back) whole = start;
  }
  append_valid_utf8(text, bytes.substr(0, whole));
  for (const char c : bytes.substr(whole)) held_[n_held_++] = c;
}

void Utf8Stream::finish(std::string& text) {
  if (n_held_ > 0) append_utf8(text, kReplacementCharacter);
  n_held_ = 0;
}

void StreamDecoder::push(int32_t id, std::string& text) {
  const std::string_view bytes = tokenizer_->piece(id);
  if (show_control_ == ShowControl::yes || !tokenizer_->is_control(id)) stream_.push(bytes, text);
}

StopStrings::StopStrings(const std::vector<std::string>& stops) : nodes_(1) {
  for (size_t i = 0; i < stops.size(); ++i) {
    lengths_.push_back(stops[i].size());
    if (!stops[i].empty()) add(stops[i], i);
  }
  link();
}

void StopStrings::add(const std::string& stop, size_t index) {
  uint32_t node = 0;
  for (const char c : stop) {
    const uint8_t byte = static_cast<uint8_t>(c);
    uint32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<uint32_t>(nodes_.size());
      const uint32_t depth = nodes_[node].depth + 1;
      nodes_.push_back({});
      nodes_.back().depth = depth;
      auto& edges = nodes_[node].next;
      const std::pair<uint8_t, uint32_t> edge{byte, next};
      edges.insert(std::upper_bound(edges.begin(), edges.end(), edge), edge);
    }
    node = next;
  }
  if (!nodes_[node].stop) nodes_[node].stop = index;
}

/// Fills in `fail`, and hands down the stop strings that end at a node as suffixes of its prefix.
void StopStrings::link() {
  std::deque<uint32_t> queue{0};  // nearest to the root first
  while (!queue.empty()) {
    const uint32_t node = queue.front();
    queue.pop_front();
    for (const auto& [byte, next] : nodes_[node].next) {
      nodes_[next].fail = node == 0 ? 0 : step(nodes_[node].fail, byte);
      if (!nodes_[next].stop) nodes_[next].stop = nodes_[nodes_[next].fail].stop;
      queue.push_back(next);
    }
  }
}

/// The node one byte further down, 0: none.
uint32_t StopStrings::child(uint32_t node, uint8_t byte) const {
  const auto& edges = nodes_[node].next;
  const auto it = std::lower_bound(edges.begin(), edges.end(), std::pair<uint8_t, uint32_t>{byte, 0});
  return it != edges.end() && it->first == byte ? it->second : 0;
}

/// The node of the longest suffix of (prefix of `node` + byte) that is a prefix of a stop string.
uint32_t StopStrings::step(uint32_t node, uint8_t byte) const {
  while (true) {
    const uint32_t next = child(node, byte);
    if (next != 0 || node == 0) return next;
    node = nodes_[node].fail;
  }
}

bool StopStrings::push(std::string_view text, std::string& out) {
  if (stopped()) return true;
  for (const char c : text) {
    held_ += c;
    node_ = step(node_, static_cast<uint8_t>(c));
    if (const auto stop = nodes_[node_].stop) {
      out.append(held_, 0, held_.size() - lengths_[*stop]);
      held_.clear();
      matched_ = stop;
      return true;
    }
  }
  // What lies before the current prefix can't be part of a stop string any more.
  const size_t sure = held_.size() - nodes_[node_].depth;
  out.append(held_, 0, sure);
  held_.erase(0, sure);
  return false;
}

void StopStrings::finish(std::string& out) {
  out += held_;
  held_.clear();
  node_ = 0;
}

}  // namespace onebit

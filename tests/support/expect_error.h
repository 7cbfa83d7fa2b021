// Expectations about onebit::Error: its kind, and words that its message must contain.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>

#include "base/error.h"

namespace onebit::test {

inline void expect_error(ErrorKind kind, std::initializer_list<const char*> words,
                         const std::function<void()>& action) {
  try {
    action();
    ADD_FAILURE() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    for (const char* word : words) EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

inline void expect_refused(std::initializer_list<const char*> words, const std::function<void()>& action) {
  expect_error(ErrorKind::refused, words, action);
}

}  // namespace onebit::test

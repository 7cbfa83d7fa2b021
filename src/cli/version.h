// The program's version, as CMakeLists.txt states it, and how it was built.
#pragma once

namespace onebit {

extern const char* const kVersionNumber;  // "0.1.0"
extern const char* const kBuildType;      // "Release"
extern const char* const kCompiler;       // "GNU 12.2.0"

}  // namespace onebit

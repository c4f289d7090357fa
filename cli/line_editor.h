#pragma once

#include <cstdio>
#include <string>

struct editline;

namespace shoal::cli {

// Lines that a person types at a terminal, edited as in a shell: arrows, Ctrl-A, Ctrl-R, and the
// lines before with the up arrow, which are forgotten with this object. ~/.editrc is obeyed. Ctrl-C
// drops what was typed; a line that ends in \ goes on in the next. UTF-8 whatever the locale.
//
// Used by one thread. One for each process: libedit's signal handlers are the process's.
class LineEditor {
 public:
  // Standard input is a terminal. The prompt goes to stderr, or if that is none to /dev/tty.
  explicit LineEditor(std::string prompt);
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;
  ~LineEditor();

  // False at the end of input (Ctrl-D on an empty line).
  bool Read(std::string* line);

  // Makes the terminal as it was before the first Read. From any thread, when the process ends in
  // the middle of one.
  static void RestoreTerminal();

 private:
  enum class Row { kTyped, kDropped, kEnd };
  // As typed, without its end.
  Row ReadRow(std::string* row);

  std::string prompt_;
  FILE* terminal_ = nullptr;  // owned if it is /dev/tty
  ::editline* edit_ = nullptr;
  void* history_ = nullptr;  // libedit's ::history
};

}  // namespace shoal::cli

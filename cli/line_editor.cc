#include "cli/line_editor.h"

#include <histedit.h>
#include <locale.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/match.h"
#include "glog/logging.h"

namespace shoal::cli {
namespace {

constexpr int kHistoryLines = 1000;
constexpr char kGoesOn[] = ". ";  // the prompt of a line that goes on

// Of libedit's callbacks, which cannot carry data of ours everywhere.
const char* shown_prompt = "";
bool was_interrupted = false;

termios terminal_before = {};
bool has_terminal_before = false;

char* Prompt(EditLine*) { return const_cast<char*>(shown_prompt); }

// Ctrl-C: the line ends, empty.
unsigned char DropLine(EditLine* edit, int) {
  const LineInfo* line = el_line(edit);
  el_cursor(edit, static_cast<int>(line->lastchar - line->cursor));
  el_deletestr(edit, static_cast<int>(line->lastchar - line->buffer));
  was_interrupted = true;
  return CC_NEWLINE;
}

// Ctrl-Z, which is a key while a line is edited: libedit gives the terminal back before the stop
// and takes it again after.
unsigned char Stop(EditLine*, int) {
  raise(SIGTSTP);
  return CC_REDISPLAY;
}

// libedit counts columns by the locale; only UTF-8 is what shoalctl writes and reads.
void TakeUtf8() {
  const char* locale = setlocale(LC_CTYPE, "");
  if (locale == nullptr || MB_CUR_MAX < 4) setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

LineEditor::LineEditor(std::string prompt) : prompt_(std::move(prompt)) {
  TakeUtf8();
  has_terminal_before = tcgetattr(STDIN_FILENO, &terminal_before) == 0;
  if (isatty(STDERR_FILENO) == 0) terminal_ = fopen("/dev/tty", "we");
  if (terminal_ == nullptr) terminal_ = stderr;
  edit_ = el_init("shoalctl", stdin, terminal_, stderr);
  CHECK(edit_ != nullptr) << "libedit has no memory";
  HistEvent event;
  History* history = ::history_init();
  ::history(history, &event, H_SETSIZE, kHistoryLines);
  ::history(history, &event, H_SETUNIQUE, 1);
  history_ = history;
  el_set(edit_, EL_PROMPT, &Prompt);
  el_set(edit_, EL_SIGNAL, 1);  // stops, continues and resizes as a shell does
  el_set(edit_, EL_EDITOR, "emacs");
  el_set(edit_, EL_HIST, ::history, history);
  // Wide: of narrow names libedit keeps copies that it never frees.
  el_wset(edit_, EL_ADDFN, L"shoal-drop-line", L"Drop the line", &DropLine);
  el_wset(edit_, EL_ADDFN, L"shoal-stop", L"Stop the process", &Stop);
  el_set(edit_, EL_SETTY, "-d", "-isig", nullptr);  // Ctrl-C is a key while a line is edited
  el_set(edit_, EL_BIND, "^C", "shoal-drop-line", nullptr);
  el_set(edit_, EL_BIND, "^Z", "shoal-stop", nullptr);
  el_set(edit_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  el_source(edit_, nullptr);
}

LineEditor::~LineEditor() {
  el_end(edit_);
  ::history_end(static_cast<History*>(history_));
  if (terminal_ != stderr) fclose(terminal_);
}

LineEditor::Row LineEditor::ReadRow(std::string* row) {
  was_interrupted = false;
  int size = 0;
  const char* typed = el_gets(edit_, &size);
  if (was_interrupted) {
    fputs("^C\n", terminal_);
    return Row::kDropped;
  }
  if (typed == nullptr || size <= 0) return Row::kEnd;
  row->assign(typed, static_cast<size_t>(size));
  if (row->back() == '\n') row->pop_back();
  return Row::kTyped;
}

bool LineEditor::Read(std::string* line) {
  line->clear();
  std::string row;
  bool goes_on = true;
  while (goes_on) {
    shown_prompt = line->empty() ? prompt_.c_str() : kGoesOn;
    switch (ReadRow(&row)) {
      case Row::kEnd:
        return false;
      case Row::kDropped:
        line->clear();
        break;
      case Row::kTyped:
        goes_on = absl::EndsWith(row, "\\");
        if (goes_on) row.back() = '\n';
        *line += row;
    }
  }
  if (!line->empty()) {
    HistEvent event;
    ::history(static_cast<History*>(history_), &event, H_ENTER, line->c_str());
  }
  return true;
}

void LineEditor::RestoreTerminal() {
  if (has_terminal_before) tcsetattr(STDIN_FILENO, TCSADRAIN, &terminal_before);
}

}  // namespace shoal::cli

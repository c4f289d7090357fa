#include "cli/completion.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace shoal::cli {

std::string BashCompletion(absl::Span<const CompletedCommand> commands) {
  std::string names;
  std::string cases;
  std::vector<std::string> takes_file;
  for (const CompletedCommand& command : commands) {
    if (command.takes_file) takes_file.push_back(command.name);
    const std::string options = absl::StrJoin(command.options, " ");
    if (!command.name.empty()) absl::StrAppend(&names, names.empty() ? "" : " ", command.name);
    absl::StrAppend(&cases, "    ", command.name.empty() ? "''" : command.name, ") words=\"",
                    options, "\" ;;\n");
  }
  return absl::StrCat(R"(_shoalctl() {
  local current=${COMP_WORDS[COMP_CWORD]} command= words= i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    if [[ ${COMP_WORDS[i]} != -* ]]; then command=${COMP_WORDS[i]}; break; fi
  done
  case $command in
)",
                      cases, R"(  esac
  if [[ -z $command && $current != -* ]]; then words=")",
                      names, R"("; fi
  COMPREPLY=()
  if [[ -z $command || $current == -* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  elif [[ " )",
                      absl::StrJoin(takes_file, " "), R"( " == *" $command "* ]]; then
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}
complete -F _shoalctl shoalctl
)");
}

}  // namespace shoal::cli

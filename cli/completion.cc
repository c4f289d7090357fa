#include "cli/completion.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace shoal::cli {

std::string BashCompletion(absl::Span<const CompletedCommand> commands) {
  std::string names;
  std::string cases;
  for (const CompletedCommand& command : commands) {
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
  if [[ -n $command && $current != -* ]]; then
    COMPREPLY=($(compgen -f -- "$current"))
  else
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  fi
}
complete -o filenames -F _shoalctl shoalctl
)");
}

}  // namespace shoal::cli

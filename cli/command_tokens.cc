#include "cli/command_tokens.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command_generate.h"
#include "cli/exit_code.h"
#include "shoal/v1/inference.grpc.pb.h"

namespace shoal::cli {
namespace {

std::string ReadIfDash(const std::string& text, std::istream* in) {
  return text == "-" ? std::string(std::istreambuf_iterator<char>(*in), {}) : text;
}

}  // namespace

int RunTokenize(const Session& session, const TokenizeFlags& flags, std::istream* in) {
  v1::TokenizeRequest request;
  request.set_model(flags.model);
  request.set_text(ReadIfDash(flags.text, in));
  request.set_add_special_tokens(!flags.no_special);
  request.set_parse_special(flags.parse_special);
  v1::TokenizeResponse response;
  const int code = CallUnary<v1::InferenceService>(
      session, session.server, &v1::InferenceService::Stub::Tokenize, request, &response);
  if (code != kExitOk) return code;
  if (session.format == Format::kJson) {
    *session.out << ToJson(response);
  } else if (!session.out_is_terminal || response.pieces_size() != response.ids_size()) {
    *session.out << absl::StrJoin(response.ids(), " ") << "\n";
  } else {
    Table table({"ID", "BYTES"});
    for (int i = 0; i < response.ids_size(); ++i) {
      table.AddRow({absl::StrCat(response.ids(i)),
                    absl::StrCat("\"", EscapeBytes(response.pieces(i)), "\"")});
    }
    *session.out << table.ToString();
  }
  session.out->flush();
  return kExitOk;
}

int RunDetokenize(const Session& session, const DetokenizeFlags& flags, std::istream* in) {
  const auto ids = ParseTokenIds(ReadIfDash(absl::StrJoin(flags.ids, " "), in));
  if (!ids.ok()) return ReportUsage(session, ids.status().message());
  v1::DetokenizeRequest request;
  request.set_model(flags.model);
  request.mutable_ids()->Add(ids->begin(), ids->end());
  request.set_skip_special_tokens(!flags.keep_special);
  v1::DetokenizeResponse response;
  const int code = CallUnary<v1::InferenceService>(
      session, session.server, &v1::InferenceService::Stub::Detokenize, request, &response);
  if (code != kExitOk) return code;
  if (session.format == Format::kJson) {
    *session.out << ToJson(response);
  } else {
    *session.out << (session.out_is_terminal ? WithoutControls(response.text()) : response.text())
                 << "\n";
  }
  session.out->flush();
  return kExitOk;
}

}  // namespace shoal::cli

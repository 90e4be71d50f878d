// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/internal/http_client.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <utility>

#include <curl/curl.h>

namespace tutti::internal {
namespace {

struct CurlDeleter {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

// An answer while it arrives.
struct Incoming {
  std::string body;
  size_t bytes = 0;
  size_t limit = 0;

  // False, which makes libcurl stop, if there is more than the limit.
  bool count(size_t more) {
    if (more > limit - bytes) {
      too_large = true;
      return false;
    }
    bytes += more;
    return true;
  }

  bool too_large = false;
};

size_t take_body(char* data, size_t size, size_t count, void* target) {
  auto& incoming = *static_cast<Incoming*>(target);
  if (!incoming.count(size * count)) return 0;
  incoming.body.append(data, size * count);
  return size * count;
}

size_t take_header(char*, size_t size, size_t count, void* target) {
  return static_cast<Incoming*>(target)->count(size * count) ? size * count : 0;
}

// libcurl's state for the whole process. Since 7.84 this may happen in any thread; with an older
// one, the first request must not be sent while other threads start using libcurl by themselves.
void initialize_curl() {
  static const CURLcode result = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (result == CURLE_OK) return;
  throw Error(ErrorCode::kUnavailable, message("libcurl: ", curl_easy_strerror(result)));
}

ErrorCode code_of(CURLcode result) {
  switch (result) {
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
      return ErrorCode::kInvalidArgument;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_CERTPROBLEM:
      return ErrorCode::kFailedPrecondition;
    case CURLE_OPERATION_TIMEDOUT:
      return ErrorCode::kDeadlineExceeded;
    default:
      return ErrorCode::kUnavailable;
  }
}

long milliseconds_until(Deadline deadline) {
  constexpr int64_t kLongest = int64_t{24} * 3600 * 1000;
  if (deadline.when() == Deadline::Clock::time_point::max()) return kLongest;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.when() -
                                                                          Deadline::Clock::now());
  return static_cast<long>(std::clamp<int64_t>(left.count(), 0, kLongest));
}

bool has_control_characters(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) == 0x7f;
  });
}

}  // namespace

struct HttpClient::Handle {
  std::unique_ptr<CURL, CurlDeleter> curl;
  char reason[CURL_ERROR_SIZE] = "";
};

HttpClient::HttpClient(std::string who, HttpClientOptions options)
    : who_(std::move(who)), options_(std::move(options)), handle_(std::make_unique<Handle>()) {
  initialize_curl();
  handle_->curl.reset(curl_easy_init());
  if (handle_->curl == nullptr) {
    throw Error(ErrorCode::kUnavailable, message(who_, ": libcurl could not be initialised."));
  }
}

HttpClient::~HttpClient() = default;

HttpAnswer HttpClient::get(const std::string& url, const std::vector<std::string>& headers,
                           Deadline deadline) {
  return send("GET", url, headers, nullptr, deadline);
}

HttpAnswer HttpClient::post(const std::string& url, const std::vector<std::string>& headers,
                            const std::string& body, Deadline deadline) {
  return send("POST", url, headers, &body, deadline);
}

void HttpClient::fail(ErrorCode code, const char* method, const std::string& url,
                      const std::string& what) const {
  throw Error(code, message(who_, ": ", method, ' ', printable(url), ": ", what));
}

HttpAnswer HttpClient::send(const char* method, const std::string& url,
                            const std::vector<std::string>& headers, const std::string* body,
                            Deadline deadline) {
  const long milliseconds = milliseconds_until(deadline);
  if (milliseconds == 0) {
    fail(ErrorCode::kDeadlineExceeded, method, url, "no time was left for this request.");
  }
  std::unique_ptr<curl_slist, CurlDeleter> lines;
  for (const std::string& header : headers) {
    // A line break would let the value of a header add another one.
    if (has_control_characters(header)) {
      fail(ErrorCode::kInvalidArgument, method, url,
           message("the header ", in_quotes(header.substr(0, header.find(':'))),
                   " contains control characters."));
    }
    curl_slist* const longer = curl_slist_append(lines.get(), header.c_str());
    if (longer == nullptr) throw std::bad_alloc();
    static_cast<void>(lines.release());
    lines.reset(longer);
  }

  CURL* const curl = handle_->curl.get();
  Incoming incoming;
  incoming.limit = options_.largest_answer;
  handle_->reason[0] = '\0';
  curl_easy_reset(curl);  // Keeps the connection.
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
#if LIBCURL_VERSION_NUM >= 0x075500
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
#else
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS, long{CURLPROTO_HTTP | CURLPROTO_HTTPS});
#endif
  curl_easy_setopt(curl, CURLOPT_PROXY, "");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, milliseconds);
#if LIBCURL_VERSION_NUM >= 0x075700
  // Otherwise, libcurl waits past the deadline for a name server that does not answer.
  curl_easy_setopt(curl, CURLOPT_QUICK_EXIT, 1L);
#endif
  curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, lines.get());
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &incoming);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &incoming);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, handle_->reason);
  if (!options_.ca_file.empty()) {
    curl_easy_setopt(curl, CURLOPT_CAINFO, options_.ca_file.c_str());
    // Otherwise, the system's authorities would count as well.
    curl_easy_setopt(curl, CURLOPT_CAPATH, nullptr);
  }
  if (body != nullptr) {
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body->size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body->c_str());
  }
  const CURLcode result = curl_easy_perform(curl);
  // What `incoming` and the headers point to ends with this function.
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  curl_easy_reset(curl);

  if (incoming.too_large) {
    fail(ErrorCode::kDataLoss, method, url,
         message("the answer is larger than ", incoming.limit, " bytes."));
  }
  if (result == CURLE_OPERATION_TIMEDOUT) {
    fail(ErrorCode::kDeadlineExceeded, method, url,
         message("no complete answer within ", static_cast<double>(milliseconds) / 1000,
                 " s. Check that the server can be reached, or raise the timeout."));
  }
  if (result != CURLE_OK) {
    const ErrorCode code = code_of(result);
    const std::string reason =
        printable(handle_->reason[0] != '\0' ? handle_->reason : curl_easy_strerror(result));
    if (code != ErrorCode::kFailedPrecondition) fail(code, method, url, reason + '.');
    fail(code, method, url,
         message("the server's certificate, or its encryption, is not accepted: ", reason,
                 ". Certificates are verified with ",
                 options_.ca_file.empty() ? "those of the system" : options_.ca_file, '.'));
  }
  return {static_cast<int>(status), std::move(incoming.body)};
}

std::string body_of_ok(std::string_view who, std::string_view url, HttpAnswer answer,
                       std::string_view advice) {
  const int status = answer.status;
  if (status == 200) return std::move(answer.body);
  ErrorCode code = ErrorCode::kFailedPrecondition;
  if (status == 404) code = ErrorCode::kNotFound;
  if (status == 429 || status >= 500) code = ErrorCode::kUnavailable;
  const bool denied = status == 401 || status == 403;
  throw Error(code, message(who, ": ", printable(url), " answered with status ", status, ": ",
                            printable(answer.body, 300), denied ? " " : "", denied ? advice : ""));
}

std::string url_encoded(std::string_view text) {
  constexpr const char* kHex = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~';
    if (plain) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out;
}

void check_url_for_token(std::string_view who, std::string_view url) {
  const size_t scheme = url.find("://");
  const std::string_view rest =
      scheme == std::string_view::npos ? std::string_view() : url.substr(scheme + 3);
  if (rest.substr(0, rest.find_first_of("/?#")).find('@') != std::string_view::npos) {
    throw Error(ErrorCode::kFailedPrecondition,
                message(who, ": ", in_quotes(url),
                        " has a user name before the host, which makes it look like the URL of "
                        "another host. Leave out what precedes the '@'."));
  }
  if (url.starts_with("https://")) return;
  for (const std::string_view host : {"127.0.0.1", "[::1]", "localhost"}) {
    const std::string begin = message("http://", host);
    if (!url.starts_with(begin)) continue;
    if (url.size() == begin.size() || url[begin.size()] == ':' || url[begin.size()] == '/') return;
  }
  throw Error(ErrorCode::kFailedPrecondition,
              message(who, ": ", in_quotes(url),
                      " is neither https nor on this machine, so anybody on the way could read the "
                      "token. Use https."));
}

std::string read_token_file(std::string_view who, const std::string& path) {
  constexpr size_t kLongest = size_t{64} << 10;
  const auto refuse = [&](const char* what) {
    throw Error(ErrorCode::kFailedPrecondition,
                message(who, ": the file ", in_quotes(path), ' ', what, '.'));
  };
  std::string text(kLongest + 1, '\0');
  std::FILE* const file = std::fopen(path.c_str(), "rbe");
  if (file == nullptr) refuse("with the token cannot be read");
  text.resize(std::fread(text.data(), 1, text.size(), file));
  static_cast<void>(std::fclose(file));
  if (text.size() > kLongest) refuse("is too large for a token");
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) {
    text.pop_back();
  }
  if (text.empty()) refuse("with the token is empty");
  if (has_control_characters(text)) refuse("is not a token: it has more than one line");
  return text;
}

}  // namespace tutti::internal

// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/internal/http_client.h"

#include <chrono>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_error.h"
#include "tests/support/http_standin.h"
#include "tests/support/scoped_environment.h"

namespace http_client_test {

using namespace tutti;
using internal::HttpAnswer;
using internal::HttpClient;
using nlohmann::json;
using test::HttpStandIn;

Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

// The time that a call takes, in seconds; it must throw.
template <class Call>
double seconds_of_failure(ErrorCode code, const char* part, const Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TUTTI_ERROR(call(), code, part);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST(HttpClient, ReturnsAnswersOfAnyStatus) {
  const HttpStandIn server(json::parse(R"([
    {"path": "/a", "query": {"x": "1 &"}, "text": "hello"},
    {"path": "/b", "status": 503, "text": "busy"},
    {"path": "/c", "method": "POST", "body": {"n": 1}, "json": [1, 2]},
    {"path": "/d", "redirect": "/a?x=1"},
    {"path": "/e"}])"));
  HttpClient client("test");
  const std::string url = server.url();
  EXPECT_EQ(client.get(url + "/a?x=" + internal::url_encoded("1 &"), {}, soon()).body, "hello");
  const HttpAnswer busy = client.get(url + "/b", {"Authorization: Bearer t"}, soon());
  EXPECT_EQ(busy.status, 503);
  EXPECT_EQ(busy.body, "busy");
  EXPECT_EQ(client.post(url + "/c", {}, R"({"n": 1})", soon()).body, "[1, 2]");
  EXPECT_EQ(client.get(url + "/d", {}, soon()).status, 302) << "not followed";
  EXPECT_EQ(client.get(url + "/e", {}, soon()).body, "");
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 5u);
  EXPECT_EQ(requests[1]["authorization"], "Bearer t");
  EXPECT_EQ(requests[4]["authorization"], "") << "belongs to one request only";
  EXPECT_EQ(requests[0]["connection"], requests[4]["connection"]) << "one connection for all";
}

TEST(HttpClient, GivesUpAtTheDeadline) {
  const HttpStandIn server(json::parse(R"([
    {"path": "/hang", "hang": true},
    {"path": "/drip", "size": 1000, "drip": 0.05},
    {"path": "/slow", "delay": 0.2, "text": "late"}])"));
  HttpClient client("test");
  const auto after = [](int milliseconds) {
    return Deadline::after(std::chrono::milliseconds(milliseconds));
  };
  for (const char* path : {"/hang", "/drip"}) {
    const double seconds =
        seconds_of_failure(ErrorCode::kDeadlineExceeded, "s. Check that the server can be reached",
                           [&] { client.get(server.url() + path, {}, after(400)); });
    EXPECT_GE(seconds, 0.39) << path;
    EXPECT_LT(seconds, 10) << path;
  }
  EXPECT_TUTTI_ERROR(client.get(server.url() + "/slow", {}, after(0)), ErrorCode::kDeadlineExceeded,
                     "test: GET http://127.0.0.1:", "no time was left");
  EXPECT_EQ(client.get(server.url() + "/slow", {}, soon()).body, "late");
}

TEST(HttpClient, LimitsTheSizeOfAnswers) {
  const HttpStandIn server(json::parse(R"([
    {"path": "/fits", "size": 90000}, {"path": "/large", "size": 110000},
    {"path": "/huge", "size": 50000000}, {"path": "/cut", "size": 9000, "cut": true}])"));
  HttpClient client("test", {.largest_answer = 100'000});
  EXPECT_EQ(client.get(server.url() + "/fits", {}, soon()).body.size(), 90000u);
  for (const char* path : {"/large", "/huge"}) {
    EXPECT_TUTTI_ERROR(client.get(server.url() + path, {}, soon()), ErrorCode::kDataLoss, path,
                       "the answer is larger than 100000 bytes");
  }
  EXPECT_TUTTI_ERROR(client.get(server.url() + "/cut", {}, soon()), ErrorCode::kUnavailable,
                     "/cut");
  EXPECT_EQ(client.get(server.url() + "/fits", {}, soon()).status, 200) << "still works";
}

TEST(HttpClient, TrustsOnlyTheGivenAuthority) {
  const json routes = json::parse(R"([{"text": "secret"}])");
  const HttpStandIn server(routes, HttpStandIn::Scheme::kHttps);
  const HttpStandIn other(routes, HttpStandIn::Scheme::kHttps);
  HttpClient client("test", {.ca_file = server.ca_file()});
  EXPECT_EQ(client.get(server.url(), {}, soon()).body, "secret");
  EXPECT_TUTTI_ERROR(client.get(other.url(), {}, soon()), ErrorCode::kFailedPrecondition,
                     "test: GET https://127.0.0.1:", "certificate",
                     "Certificates are verified with " + server.ca_file());
  EXPECT_TRUE(other.requests().empty()) << "nothing was sent";
  EXPECT_TUTTI_ERROR(client.get("https://localhost:" + server.port(), {}, soon()),
                     ErrorCode::kFailedPrecondition, "localhost");
  EXPECT_TUTTI_ERROR(HttpClient("test").get(server.url(), {}, soon()),
                     ErrorCode::kFailedPrecondition, "those of the system");
  EXPECT_TUTTI_ERROR(HttpClient("test", {.ca_file = "/nowhere.pem"}).get(server.url(), {}, soon()),
                     ErrorCode::kFailedPrecondition, "/nowhere.pem");
  const HttpStandIn plain(routes);
  EXPECT_TUTTI_ERROR(client.get("https://127.0.0.1:" + plain.port(), {}, soon()),
                     ErrorCode::kFailedPrecondition, "https://127.0.0.1:");
}

TEST(HttpClient, ReachesServersByIPv6) {
  const HttpStandIn server(json::parse(R"([{"host": "::1", "text": "six"}])"),
                           HttpStandIn::Scheme::kHttps);
  HttpClient client("test", {.ca_file = server.ca_file()});
  EXPECT_EQ(client.get(server.url(), {}, soon()).body, "six");
}

TEST(HttpClient, NamesWhatItCannotReach) {
  HttpClient client("test");
  std::string closed;
  {
    const HttpStandIn server(json::parse(R"([{"text": "gone"}])"));
    closed = server.url();
  }
  EXPECT_TUTTI_ERROR(client.get(closed, {}, soon()), ErrorCode::kUnavailable,
                     "test: GET " + closed);
  EXPECT_TUTTI_ERROR(client.get("http://no-such-host.invalid/x", {}, soon()),
                     ErrorCode::kUnavailable, "no-such-host.invalid");
  EXPECT_TUTTI_ERROR(client.get("file:///etc/passwd", {}, soon()), ErrorCode::kInvalidArgument,
                     "file:///etc/passwd");
  EXPECT_TUTTI_ERROR(client.get("http://", {}, soon()), ErrorCode::kInvalidArgument, "http://");
  EXPECT_TUTTI_ERROR(client.get(closed, {"X: a\r\nY: b"}, soon()), ErrorCode::kInvalidArgument,
                     "the header \"X\" contains control characters");
}

TEST(HttpClient, DoesNotUseAProxy) {
  const HttpStandIn server(json::parse(R"([{"text": "direct"}])"));
  test::ScopedEnvironment environment{{"http_proxy", "http://127.0.0.1:9"},
                                      {"ALL_PROXY", "http://127.0.0.1:9"}};
  EXPECT_EQ(HttpClient("test").get(server.url(), {}, soon()).body, "direct");
}

TEST(HttpStatus, DecidesTheError) {
  const struct {
    int status;
    ErrorCode code;
  } cases[] = {
      {302, ErrorCode::kFailedPrecondition}, {400, ErrorCode::kFailedPrecondition},
      {404, ErrorCode::kNotFound},           {429, ErrorCode::kUnavailable},
      {500, ErrorCode::kUnavailable},        {503, ErrorCode::kUnavailable},
  };
  for (const auto& each : cases) {
    EXPECT_TUTTI_ERROR(internal::body_of_ok("test", "u", {each.status, "why\n"}, "Do this."),
                       each.code, "test: u answered with status " + std::to_string(each.status),
                       "why\\x0a");
  }
  EXPECT_TUTTI_ERROR(internal::body_of_ok("test", "u", {403, "no"}, "Do this."),
                     ErrorCode::kFailedPrecondition, "status 403: no Do this.");
  EXPECT_EQ(internal::body_of_ok("test", "u", {200, "yes"}, ""), "yes");
}

TEST(Token, IsOnlySentWhereNobodyReadsIt) {
  for (const char* url : {"https://api", "http://127.0.0.1:80/x", "http://[::1]",
                          "http://localhost/", "https://api/@", "http://localhost/?@"}) {
    EXPECT_NO_THROW(internal::check_url_for_token("test", url)) << url;
  }
  for (const char* url : {"http://api", "http://localhost.example", "http://127.0.0.1.example/",
                          "ftp://localhost", ""}) {
    EXPECT_TUTTI_ERROR(internal::check_url_for_token("test", url), ErrorCode::kFailedPrecondition,
                       "neither https nor on this machine");
  }
  for (const char* url : {"http://localhost:8001@evil.example", "http://localhost:@evil.example/",
                          "http://127.0.0.1:80\\@evil.example", "https://user@api"}) {
    EXPECT_TUTTI_ERROR(internal::check_url_for_token("test", url), ErrorCode::kFailedPrecondition,
                       "a user name before the host");
  }
}

TEST(Token, IsTheOnlyLineOfItsFile) {
  const test::TempFolder folder;
  const std::string path = folder.path("token");
  test::write_file(path, "abc.def\r\n");
  EXPECT_EQ(internal::read_token_file("test", path), "abc.def");
  const struct {
    std::string text;
    const char* part;
  } cases[] = {{"", "is empty"},
               {"\n\n", "is empty"},
               {"a\nX-Other: b\n", "more than one line"},
               {std::string(70'000, 'a'), "too large"}};
  for (const auto& each : cases) {
    test::write_file(path, each.text);
    EXPECT_TUTTI_ERROR(internal::read_token_file("test", path), ErrorCode::kFailedPrecondition,
                       "test: the file", each.part);
  }
  EXPECT_TUTTI_ERROR(internal::read_token_file("test", folder.path("none")),
                     ErrorCode::kFailedPrecondition, "cannot be read");
}

}  // namespace http_client_test

// SPDX-License-Identifier: Apache-2.0
//
// tutti-certs makes certificates for the machines of one job.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cli/certificates.h"

namespace {

constexpr const char* kHelp =
    R"(Usage: tutti-certs --hosts HOST,HOST,... --out FOLDER [--days N]

Creates a throw-away certificate authority and one certificate per host, for mutual TLS between the
processes of one job. Writes ca.pem, and HOST.pem and HOST.key for each host, to FOLDER; the key of
the authority is discarded. Copy ca.pem and the host's own two files to each host.

  --hosts  host names or IP addresses at which the machines reach each other. Join several names of
           one machine with +, as in hostA+10.0.0.1; the first one names the files.
  --out    folder for the files, which must not exist yet
  --days   validity of the certificates in days, 30 by default
  --help   print this text
)";

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

std::string file_name(std::string host) {
  for (char& letter : host) {
    if (letter == ':') letter = '_';
  }
  return host;
}

int wrong_usage(const std::string& what) {
  std::fprintf(stderr, "tutti-certs: %s\n%s", what.c_str(), kHelp);
  return 2;
}

int run(const std::vector<std::string>& arguments) {
  std::string hosts;
  std::string out;
  std::string days = "30";
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name == "--help" || name == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    std::string* const value = name == "--hosts"  ? &hosts
                               : name == "--out"  ? &out
                               : name == "--days" ? &days
                                                  : nullptr;
    if (value == nullptr) return wrong_usage("unknown argument " + name);
    if (++i == arguments.size()) return wrong_usage(name + " needs a value");
    *value = arguments[i];
  }
  const int number = std::atoi(days.c_str());
  if (hosts.empty() || out.empty() || number < 1) {
    return wrong_usage("--hosts and --out are required, and --days must be a positive number");
  }
  std::vector<tutti::cli::TaskCertificate> tasks;
  for (const std::string& host : split(hosts, ',')) {
    const std::vector<std::string> names = split(host, '+');
    if (names.empty()) return wrong_usage("--hosts has an empty host");
    tasks.push_back({.name = file_name(names[0]), .hosts = names});
  }
  tutti::cli::make_throwaway_ca(out, tasks, std::chrono::hours(24 * number));
  std::printf("tutti-certs: wrote %s/ca.pem and the files of %zu hosts.\n", out.c_str(),
              tasks.size());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tutti-certs: %s\n", error.what());
    return 1;
  }
}

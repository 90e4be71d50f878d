// SPDX-License-Identifier: Apache-2.0

#include "cli/certificates.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "tutti/base/error.h"

namespace tutti::cli {
namespace {

struct FreeOpenssl {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(BIGNUM* number) const { BN_free(number); }
};
template <class T>
using Handle = std::unique_ptr<T, FreeOpenssl>;

Handle<EVP_PKEY> make_key() {
  Handle<EVP_PKEY> key(EVP_EC_gen("P-256"));
  TUTTI_CHECK(key != nullptr);
  return key;
}

void add_extension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Handle<X509_EXTENSION> extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  TUTTI_CHECK(extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1);
}

void set_random_serial(X509* certificate) {
  const Handle<BIGNUM> number(BN_new());
  TUTTI_CHECK(number != nullptr &&
              BN_rand(number.get(), 127, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1);
  TUTTI_CHECK(BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr);
}

/// Makes a certificate that still lacks extensions and a signature.
Handle<X509> make_certificate(EVP_PKEY* key, const std::string& name, std::chrono::hours validity) {
  Handle<X509> certificate(X509_new());
  TUTTI_CHECK(certificate != nullptr && X509_set_version(certificate.get(), 2) == 1);
  set_random_serial(certificate.get());
  constexpr long kClockSkew = 3600;  // The clocks of a job's machines may differ.
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kClockSkew);
  X509_time_adj_ex(X509_getm_notAfter(certificate.get()), static_cast<int>(validity.count() / 24),
                   static_cast<long>(validity.count() % 24) * 3600, nullptr);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  TUTTI_CHECK(X509_set_pubkey(certificate.get(), key) == 1);
  return certificate;
}

void sign(X509* certificate, X509* issuer, EVP_PKEY* issuer_key) {
  TUTTI_CHECK(X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) == 1);
  TUTTI_CHECK(X509_sign(certificate, issuer_key, EVP_sha256()) > 0);
}

template <class Write>
std::string to_pem(const Write& write) {
  const Handle<BIO> bio(BIO_new(BIO_s_mem()));
  TUTTI_CHECK(bio != nullptr && write(bio.get()) == 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<size_t>(size)};
}

void write_new_file(const std::filesystem::path& path, const std::string& text, mode_t mode) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
  const bool written =
      fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int code = errno;
  if (fd >= 0) close(fd);
  if (!written) {
    throw Error(ErrorCode::kFailedPrecondition,
                message("make_throwaway_ca: cannot write ", path.string(), ": ",
                        std::generic_category().message(code), ". Choose a new folder."));
  }
}

bool is_ip_address(const std::string& host) {
  std::array<std::byte, sizeof(in6_addr)> ignored;
  return inet_pton(AF_INET, host.c_str(), ignored.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), ignored.data()) == 1;
}

bool consists_of(const std::string& text, std::string_view others) {
  return !text.empty() && text.size() <= 250 &&
         std::all_of(text.begin(), text.end(), [&](unsigned char letter) {
           return std::isalnum(letter) != 0 || others.find(char(letter)) != std::string_view::npos;
         });
}

/// "DNS:hostA,IP:10.0.0.1", as X509V3 expects it. The checks prevent injection of other fields.
std::string alternative_names(const TaskCertificate& task) {
  std::string names;
  for (const std::string& host : task.hosts) {
    const bool ip = is_ip_address(host);
    if (!ip && !consists_of(host, ".-_")) {
      throw Error(ErrorCode::kInvalidArgument,
                  message("make_throwaway_ca: \"", printable(host),
                          "\" is neither a host name nor an IP address."));
    }
    names += (names.empty() ? "" : ",") + std::string(ip ? "IP:" : "DNS:") + host;
  }
  return names;
}

void check_tasks(const std::vector<TaskCertificate>& tasks, std::chrono::hours validity) {
  for (const TaskCertificate& task : tasks) {
    if (!consists_of(task.name, ".-_") || task.name == "ca" || task.name.front() == '.' ||
        task.hosts.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  message("make_throwaway_ca: the task \"", printable(task.name),
                          "\" needs a name of letters, digits and . - _ other than \"ca\", and at "
                          "least one host."));
    }
  }
  if (tasks.empty() || validity.count() < 1 || validity.count() > 24L * 3650) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "make_throwaway_ca: at least one task and a validity from one hour to ten years are "
        "required.");
  }
}

}  // namespace

void make_throwaway_ca(const std::string& folder, const std::vector<TaskCertificate>& tasks,
                       std::chrono::hours validity) {
  check_tasks(tasks, validity);
  std::vector<std::string> names;
  for (const TaskCertificate& task : tasks) names.push_back(alternative_names(task));
  const std::filesystem::path path(folder);
  std::error_code ignored;
  std::filesystem::create_directories(path, ignored);

  const Handle<EVP_PKEY> ca_key = make_key();
  const Handle<X509> ca = make_certificate(ca_key.get(), "tutti throw-away CA", validity);
  add_extension(ca.get(), ca.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  add_extension(ca.get(), ca.get(), NID_key_usage, "critical,keyCertSign");
  add_extension(ca.get(), ca.get(), NID_subject_key_identifier, "hash");
  sign(ca.get(), ca.get(), ca_key.get());
  write_new_file(path / "ca.pem",
                 to_pem([&](BIO* bio) { return PEM_write_bio_X509(bio, ca.get()); }), 0644);

  for (size_t i = 0; i < tasks.size(); ++i) {
    const Handle<EVP_PKEY> key = make_key();
    const Handle<X509> certificate = make_certificate(key.get(), tasks[i].name, validity);
    add_extension(certificate.get(), ca.get(), NID_basic_constraints, "critical,CA:FALSE");
    add_extension(certificate.get(), ca.get(), NID_key_usage, "critical,digitalSignature");
    add_extension(certificate.get(), ca.get(), NID_ext_key_usage, "serverAuth,clientAuth");
    add_extension(certificate.get(), ca.get(), NID_subject_alt_name, names[i]);
    sign(certificate.get(), ca.get(), ca_key.get());
    const auto write_key = [&](BIO* bio) {
      return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    };
    write_new_file(path / (tasks[i].name + ".key"), to_pem(write_key), 0600);
    write_new_file(path / (tasks[i].name + ".pem"),
                   to_pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate.get()); }),
                   0644);
  }
}

rpc::SecurityOptions certificates_in(const std::string& folder, const std::string& name) {
  const std::filesystem::path path(folder);
  return {.ca_file = path / "ca.pem",
          .certificate_file = path / (name + ".pem"),
          .key_file = path / (name + ".key")};
}

}  // namespace tutti::cli

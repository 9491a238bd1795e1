#include "base/hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include "base/check.h"

namespace deepinfer {

Sha256 sha256(std::span<const std::byte> bytes) {
  Sha256 out;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), out.data());
  return out;
}

std::string hex(std::span<const uint8_t> bytes) {
  std::string out;
  for (uint8_t b : bytes) out += fmt::format("{:02x}", b);
  return out;
}

// Looking an algorithm up by name costs OpenSSL 3 as much as hashing a block of ids, hence once.
struct Sha256Hasher::Context {
  EVP_MD* algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Context() {
    EVP_MD_CTX_free(context);
    EVP_MD_free(algorithm);
  }
};

Sha256Hasher::Sha256Hasher() : context_(std::make_unique<Context>()) {
  DI_CHECK(context_->algorithm != nullptr && context_->context != nullptr, "the crypto library has no SHA-256");
}
Sha256Hasher::~Sha256Hasher() = default;
Sha256Hasher::Sha256Hasher(Sha256Hasher&&) noexcept = default;
Sha256Hasher& Sha256Hasher::operator=(Sha256Hasher&&) noexcept = default;

void Sha256Hasher::begin() {
  DI_CHECK(EVP_DigestInit_ex2(context_->context, context_->algorithm, nullptr) == 1, "SHA-256");
}

void Sha256Hasher::add(std::span<const std::byte> bytes) {
  DI_CHECK(EVP_DigestUpdate(context_->context, bytes.data(), bytes.size()) == 1, "SHA-256");
}

Sha256 Sha256Hasher::end() {
  Sha256 out;
  DI_CHECK(EVP_DigestFinal_ex(context_->context, out.data(), nullptr) == 1, "SHA-256");
  return out;
}

}  // namespace deepinfer

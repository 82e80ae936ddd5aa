// Which PEM files a program proves itself with and trusts, on connections that leave the machine.
#pragma once

#include <string>

namespace megascale::security {

// All three, or none (plaintext, where that is allowed).
struct TlsFiles {
  std::string ca;           // the authority that signed the other side's certificates
  std::string certificate;  // this side's own, with its chain
  std::string key;          // its private key; readable by its owner only

  bool any() const { return !ca.empty() || !certificate.empty() || !key.empty(); }
  bool complete() const { return !ca.empty() && !certificate.empty() && !key.empty(); }
};

// The text of these files.
struct TlsPems {
  std::string ca;
  std::string certificate;
  std::string key;
};

}  // namespace megascale::security

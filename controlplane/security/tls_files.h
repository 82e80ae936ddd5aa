// The PEM files with which a program authenticates itself and its peers on TLS connections.
#pragma once

#include <string>

namespace megascale::security {

// Either all three paths are set, or no path (plaintext, where that is allowed).
struct TlsFiles {
  std::string ca;           // the authority that signed the other side's certificates
  std::string certificate;  // this side's own, with its chain
  std::string key;          // its private key; readable by its owner only

  bool any() const { return !ca.empty() || !certificate.empty() || !key.empty(); }
  bool complete() const { return !ca.empty() && !certificate.empty() && !key.empty(); }
};

// The contents of these files.
struct TlsPems {
  std::string ca;
  std::string certificate;
  std::string key;
};

}  // namespace megascale::security

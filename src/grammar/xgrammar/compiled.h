// The library's compiled form inside Grammar: for .cc files of this folder only.
#pragma once

#include <xgrammar/xgrammar.h>

#include "grammar/grammar.h"

namespace deepinfer::grammar {

struct Grammar::Compiled {
  xgrammar::CompiledGrammar grammar;
};

}  // namespace deepinfer::grammar

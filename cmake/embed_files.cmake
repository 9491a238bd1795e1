# cmake -DDIR=<folder> -DOUT=<unit.cc> -P embed_files.cmake: every file of the folder as bytes in one C++ unit.

file(GLOB files ${DIR}/*)
set(arrays "")
set(rows "")
set(number 0)
foreach(file ${files})
  get_filename_component(name ${file} NAME)
  file(READ ${file} bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "const unsigned char kFile${number}[] = {${bytes}0};\n")
  string(APPEND rows "    {\"${name}\", {reinterpret_cast<const char*>(kFile${number}), sizeof kFile${number} - 1}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT} "// Written by cmake/embed_files.cmake.
#include \"serve/web.h\"

namespace deepinfer::serve {
namespace {

${arrays}
const WebFile kFiles[] = {
${rows}};

}  // namespace

std::span<const WebFile> web_files() {
  return kFiles;
}

}  // namespace deepinfer::serve
")

# The files of src/serve/web inside the program: di_embed_web(<target>) writes a table of them (serve/web.h) into one
# generated unit, anew whenever a file changes. Adding a file needs nothing else.

set(DI_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/embed_files.cmake)

function(di_embed_web target)
  set(dir ${CMAKE_SOURCE_DIR}/src/serve/web)
  set(unit ${CMAKE_BINARY_DIR}/generated/web_files.cc)
  file(GLOB files CONFIGURE_DEPENDS ${dir}/*)
  add_custom_command(
    OUTPUT ${unit}
    COMMAND ${CMAKE_COMMAND} -DDIR=${dir} -DOUT=${unit} -P ${DI_EMBED_SCRIPT}
    DEPENDS ${files} ${DI_EMBED_SCRIPT}
    VERBATIM)
  target_sources(${target} PRIVATE ${unit})
endfunction()

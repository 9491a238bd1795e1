# DI_SANITIZE = "" | address (address + undefined behaviour) | thread

set(DI_SANITIZE "" CACHE STRING "sanitizer: empty, address or thread")
if(DI_SANITIZE STREQUAL "address")
  add_compile_options(-O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=address,undefined)
elseif(DI_SANITIZE STREQUAL "thread")
  add_compile_options(-O1 -fsanitize=thread -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=thread)
  # The sanitizer does not understand bare fences, and GCC says so; Asio's queues are guarded by mutexes as well.
  add_compile_definitions(BOOST_ASIO_DISABLE_FENCED_BLOCK)
elseif(DI_SANITIZE)
  message(FATAL_ERROR "DI_SANITIZE must be empty, address or thread, not '${DI_SANITIZE}'")
endif()

# The fuzz targets need coverage in every library they link, and both sanitizers to see what goes wrong.
if(DI_FUZZ)
  add_compile_options(-O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=address,undefined)
endif()

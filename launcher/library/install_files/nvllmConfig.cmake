# find_package(nvllm) makes the target nvllm::nvllm.
include_guard(GLOBAL)
include(CMakeFindDependencyMacro)
find_dependency(Threads)
get_filename_component(_nvllm_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
add_library(nvllm::nvllm STATIC IMPORTED)
set_target_properties(nvllm::nvllm PROPERTIES
  IMPORTED_LOCATION "${_nvllm_prefix}/lib/libnvllm.a"
  IMPORTED_LINK_INTERFACE_LANGUAGES CXX
  INTERFACE_INCLUDE_DIRECTORIES "${_nvllm_prefix}/include"
  INTERFACE_COMPILE_FEATURES cxx_std_17
  INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m;rt")
unset(_nvllm_prefix)

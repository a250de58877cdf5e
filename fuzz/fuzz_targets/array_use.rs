#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::entries::array_use(data));

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::entries::tls_records(data));

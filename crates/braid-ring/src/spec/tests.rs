use super::*;

/// Parses `text`, and checks its display and that the display parses to the same value.
fn check(text: &str, shown: &str) -> DiskSpec {
    let spec = DiskSpec::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    assert_eq!(spec.to_string(), shown);
    assert_eq!(DiskSpec::parse(shown).as_ref(), Ok(&spec));
    spec
}

fn refused(text: &str, argument: &str, problem: &str) {
    let error = DiskSpec::parse(text).expect_err(text);
    assert!(error.argument.contains(argument), "{text}: {error}");
    assert!(error.problem.contains(problem), "{text}: {error}");
    let examples = ["/dev/sdb, ", "./a"];
    if !examples.iter().any(|e| error.example.starts_with(e)) {
        assert!(DiskSpec::parse(error.example).is_ok(), "the example of {text} is wrong: {}", error.example);
    }
}

#[test]
fn names_round_trip() {
    assert_eq!(check("/dev/nvme1n1", "/dev/nvme1n1"), DiskSpec::Path("/dev/nvme1n1".into()));
    check("/dev/disk/by-path/pci-0000:00:1f.2-ata-1", "/dev/disk/by-path/pci-0000:00:1f.2-ata-1");
    check("./a.img", "./a.img");
    assert_eq!(check(r"./a\,b\(c\)\\.img", r"./a\,b\(c\)\\.img").path().unwrap().to_str(), Some(r"./a,b(c)\.img"));
    assert_eq!(
        check("file:/x,size=50G,alloc=sparse", "file:/x,size=50G"),
        DiskSpec::File { path: "/x".into(), size_bytes: Some(50 << 30), alloc: Alloc::Sparse }
    );
    check("file:/x,alloc=full,size=4100K", "file:/x,size=4100K,alloc=full").path().unwrap();
    refused("file:/x,size=10MB", "size=10MB", "multiple of 4096");
    check("file:/x", "file:/x");
    check("mem:1G", "mem:1G");
    let remote = check("faulty(nbd+unix:///a%2Cb?socket=/run/s.sock)", "faulty(nbd+unix:///a%2Cb?socket=/run/s.sock)");
    assert_eq!((remote.remote(), remote.path()), (Some("nbd+unix:///a%2Cb?socket=/run/s.sock"), None));
    assert!(!check("nbd://host:10809/disk", "nbd://host:10809/disk").is_volatile());
    assert!(check("null:1T", "null:1T").is_volatile());
    let throttled = check(
        "throttled(file:/x,size=1G,alloc=full,iops=3000,bw=125M,latency=600us)",
        "throttled(file:/x,size=1G,alloc=full,iops=3000,bw=125M,latency=600us)",
    );
    assert!(!throttled.is_volatile());
    check(
        "throttled(faulty(file:/x,size=1G,read-error=0.25),iops=10)",
        "throttled(faulty(file:/x,size=1G,read-error:0.25),iops=10)",
    );
    check(r"faulty(/a\,b,torn)", r"faulty(/a\,b,torn)");
    check("faulty(mem:1G)", "faulty(mem:1G)");
    check(
        "faulty(mem:1G,read-error=0.01,write-error@1M-2M,delay=50ms:0.1,flush-delay=1s,torn=0.5*3,corrupt,hang@0-4K,gone-after=1000,gone,seed=7)",
        "faulty(mem:1G,read-error:0.01,write-error@1M-2M,delay=50ms:0.1,flush-delay=1s,torn:0.5*3,corrupt,hang@0-4K,gone-after=1000,gone-after=0,seed=7)",
    );
}

#[test]
fn errors_name_the_wrong_part_and_show_an_example() {
    refused("", "", "path is missing");
    refused("a,b", "a,b", "needs a backslash");
    refused("a\\b", "a\\b", "backslash stands only before");
    refused("raw:1G", "raw:1G", "no kind of disk called raw");
    refused("nbdx://host/export", "nbdx://host/export", "nbd, nbds, nbd+unix and nbds+unix");
    refused("nbd://host/a,b", "nbd://host/a,b", "`,` in an address is percent-encoded");
    refused("nbd://host/a b", "nbd://host/a b", "percent-encoded");
    refused("mem:", "mem:", "");
    refused("mem:0", "mem:0", "multiple of 4096");
    refused("mem:5000", "mem:5000", "multiple of 4096");
    refused("null:16000P", "null:16000P", "");
    refused("file:,size=1G", "file:", "path is missing");
    refused("file:/x,size=1G,size=2G", "size=2G", "twice");
    refused("file:/x,alloc=full", "file:/x", "needs size");
    refused("file:/x,size=1G,alloc=thin", "alloc=thin", "sparse or full");
    refused("file:/x,sise=1G", "sise=1G", "not an option");
    refused("throttled(mem:1G)", "throttled", "no limit");
    refused("throttled(mem:1G,iops=3000", "throttled(mem:1G", "not closed");
    refused("throttled(mem:1G,iops=3k)", "iops=3k", "whole number");
    refused("throttled(mem:1G,iops=0)", "iops=0", "between");
    refused("throttled(mem:1G,latency=00us)", "latency=00us", "more than 0");
    refused("throttled(mem:1G,latency=5)", "latency=5", "ns, us, ms or s");
    refused("throttled(mem:1G,latency=99999999999999999999s)", "latency=", "whole number");
    refused("throttled(mem:1G,speed=1)", "speed=1", "not a limit");
    refused("throttled(mem:1G),iops=1)", "mem:1G),iops=1", "parenthesis too many");
    refused("throttled(faulty(mem:1G,torn,iops=3)", "faulty(mem:1G", "not closed");
    refused("faulty(mem:1G,tear)", "tear", "not a rule");
    refused("faulty(mem:1G,read-torn)", "read-torn", "not a rule");
    refused("faulty(mem:1G,error=2)", "error=2", "from 0 to 1");
    refused("faulty(mem:1G,error=nan)", "error=nan", "from 0 to 1");
    refused("faulty(mem:1G,error=0.5:0.5)", "error=0.5:0.5", "twice");
    refused("faulty(mem:1G,delay)", "delay", "needs its time");
    refused("faulty(mem:1G,error@2G-1G)", "error@2G-1G", "FROM-TO");
    refused("faulty(mem:1G,error*x)", "error*x", "how often");
    refused("faulty(mem:1G,seed=1,seed=2)", "seed=2", "twice");
    refused(&format!("{}mem:1G{}", "faulty(".repeat(9), ")".repeat(9)), "", "wrappers");
    refused(&"x".repeat(20_000), "xxx", "longer");
    refused("a\0b", "a?b", "zero byte");
}

/// Any input parses to a disk that round-trips, or gives an error. Nothing panics.
#[test]
fn mutated_names_never_panic() {
    let seeds = [
        "throttled(faulty(file:/x\\,y,size=1G,read-error=0.01@1G-2G*3),iops=3000,bw=125M,latency=600us)",
        "faulty(null:1T,delay=50ms:0.1,seed=7,gone-after=12)",
        "file:/µ/x,size=10K,alloc=full",
    ];
    let alphabet: Vec<char> = "(),:=@*-\\.09KGeµ\0fnt/".chars().collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let mut read = 0;
    for round in 0..30_000 {
        let mut text: Vec<char> = seeds[round % seeds.len()].chars().collect();
        for _ in 0..1 + random(3) {
            let at = random(text.len());
            match random(3) {
                0 => drop(text.remove(at)),
                1 => text.insert(at, alphabet[random(alphabet.len())]),
                _ => text[at] = alphabet[random(alphabet.len())],
            }
        }
        let text: String = text.into_iter().collect();
        if let Ok(spec) = DiskSpec::parse(&text) {
            read += 1;
            assert_eq!(DiskSpec::parse(&spec.to_string()), Ok(spec), "{text}");
        }
    }
    assert!(read > 500, "most mutations broke the name: {read}");
}

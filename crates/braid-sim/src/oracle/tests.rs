use super::*;

struct Model {
    oracle: Oracle,
    device: u64,
}

impl Model {
    fn new() -> Model {
        let mut oracle = Oracle::default();
        let device = oracle.device_made("a", 4);
        Model { oracle, device }
    }

    fn begin(&mut self, content: Content, fua: bool) -> WriteToken {
        self.oracle.write_begun(self.device, 1, 1, content, fua)
    }

    fn write(&mut self) -> u64 {
        let w = self.begin(Content::Data, false);
        self.oracle.write_ended(&w, Ending::Done);
        w.version
    }

    fn flush(&mut self) {
        let begun = self.oracle.flush_begun();
        self.oracle.flush_done(self.device, begun);
    }

    fn block(&self, version: u64) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_BYTES];
        if version > 0 {
            content::write_block(&Identity { device: self.device, block: 1, version }, &mut bytes);
        }
        bytes
    }

    fn reads(&mut self, bytes: &[u8]) -> bool {
        let begun = self.oracle.read_begun(self.device);
        self.oracle.read_ended(self.device, begun, 1, Some(bytes)).is_ok()
    }

    /// Returns whether version `version` (0: zeros) may be read now.
    fn sees(&mut self, version: u64) -> bool {
        let bytes = self.block(version);
        self.reads(&bytes)
    }
}

#[test]
fn an_acknowledged_write_replaces_older_ones() {
    let mut m = Model::new();
    assert!(m.sees(0));
    let a = m.write();
    assert!(m.sees(a) && !m.sees(0));
    let w = m.begin(Content::Data, false);
    assert!(m.sees(a) && m.sees(w.version), "in flight: either");
    m.oracle.write_ended(&w, Ending::Failed);
    assert!(m.sees(a) && m.sees(w.version), "failed: either");
    let c = m.write();
    assert!(m.sees(c) && !m.sees(a) && !m.sees(w.version));
}

#[test]
fn a_read_may_return_data_replaced_while_it_runs() {
    let mut m = Model::new();
    let a = m.write();
    m.flush();
    let begun = m.oracle.read_begun(m.device);
    let b = m.write();
    m.flush();
    let _c = m.write();
    for old in [a, b] {
        let bytes = m.block(old);
        m.oracle.read_ended(m.device, begun, 1, Some(&bytes)).unwrap();
    }
}

#[test]
fn a_kill_keeps_acknowledged_writes_and_a_power_cut_flushed_ones() {
    for (how, flushed, old_is_gone) in [
        (Crash::Kill, false, true),
        (Crash::Power, false, false),
        (Crash::Power, true, true),
        (Crash::Kill, true, true),
    ] {
        let mut m = Model::new();
        let a = m.write();
        m.flush();
        let b = m.write();
        if flushed {
            m.flush();
        }
        m.oracle.crashed(how, &[]);
        assert!(!m.sees(0), "{how:?}");
        assert_eq!(m.sees(a), !old_is_gone, "{how:?} {flushed}");
        if old_is_gone {
            assert!(m.sees(b));
        }
    }
}

#[test]
fn a_flush_covers_only_writes_acknowledged_before_it_began() {
    let mut m = Model::new();
    let a = m.write();
    m.flush();
    let w = m.begin(Content::Data, false);
    let begun = m.oracle.flush_begun();
    m.oracle.write_ended(&w, Ending::Done);
    m.oracle.flush_done(m.device, begun);
    m.oracle.crashed(Crash::Power, &[]);
    assert!(m.sees(a));
}

#[test]
fn fua_needs_no_flush() {
    let mut m = Model::new();
    let w = m.begin(Content::Data, true);
    m.oracle.write_ended(&w, Ending::Done);
    m.oracle.crashed(Crash::Power, &[]);
    assert!(!m.sees(0) && m.sees(w.version));
}

#[test]
fn data_read_after_a_recovery_stays() {
    for second in [Crash::Power, Crash::Kill] {
        let mut m = Model::new();
        let a = m.write();
        let b = m.begin(Content::Data, false).version;
        m.oracle.crashed(Crash::Kill, &[]);
        assert!(m.sees(b));
        assert!(!m.sees(a), "it goes back at once");
        m.oracle.crashed(second, &[]);
        assert!(!m.sees(a) && !m.sees(0), "it goes back after a second crash");
        assert!(m.sees(b));
    }
    // Never read: the power cut that follows the kill may lose it.
    let mut m = Model::new();
    m.write();
    m.oracle.crashed(Crash::Kill, &[]);
    m.oracle.crashed(Crash::Power, &[]);
    assert!(m.sees(0));
}

#[test]
fn sectors_tear_and_stay_torn() {
    let mut m = Model::new();
    let (a, b) = (m.write(), m.begin(Content::Data, false).version);
    m.oracle.crashed(Crash::Power, &[]);
    let torn = [&m.block(a)[..1024], &m.block(b)[1024..]].concat();
    assert!(m.reads(&torn));
    assert!(m.reads(&torn));
    assert!(!m.sees(a));
    assert!(!m.sees(b));
}

#[test]
fn stray_sectors_are_violations() {
    let mut m = Model::new();
    let a = m.write();
    let mut other = vec![0; BLOCK_BYTES];
    for (device, block) in [(m.device, 2), (m.device + 1, 1)] {
        content::write_block(&Identity { device, block, version: a }, &mut other);
        assert!(!m.reads(&other));
    }
    assert!(!m.reads(&[content::POISON; BLOCK_BYTES]));
}

#[test]
fn a_new_device_may_show_data_of_a_deleted_device_but_not_of_one_in_use() {
    let mut m = Model::new();
    let mut left = vec![0; BLOCK_BYTES];
    content::write_block(&Identity { device: m.device, block: 9, version: 3 }, &mut left);
    let old = m.device;
    m.device = m.oracle.device_made("b", 4);
    assert!(!m.reads(&left));
    m.oracle.device_deleted(old);
    assert!(m.reads(&left));
}

#[test]
fn a_discard_guarantees_nothing_and_zeroing_guarantees_zeros() {
    let mut m = Model::new();
    let a = m.write();
    m.flush();
    let d = m.begin(Content::MaybeZero, false);
    m.oracle.write_ended(&d, Ending::Done);
    m.flush();
    assert!(m.sees(a) && m.sees(0));
    let z = m.begin(Content::Zero, true);
    m.oracle.write_ended(&z, Ending::Done);
    assert!(m.sees(0) && !m.sees(a));
    m.oracle.crashed(Crash::Power, &[]);
    assert!(m.sees(0) && !m.sees(a));
}

#[test]
fn a_disk_whose_flush_failed_may_lose_data_at_a_kill() {
    let mut m = Model::new();
    m.write();
    let device = m.device;
    m.oracle.crashed(Crash::Kill, &[device]);
    assert!(m.sees(0));
}

#[test]
fn the_later_of_two_overlapping_writes_stays() {
    let mut m = Model::new();
    let (v, w) = (m.begin(Content::Data, false), m.begin(Content::Data, false));
    m.oracle.write_ended(&v, Ending::Done);
    assert!(m.sees(v.version) && m.sees(w.version), "one is still in flight");
    m.oracle.write_ended(&w, Ending::Done);
    assert!(!m.sees(v.version) && m.sees(w.version));
    m.oracle.crashed(Crash::Kill, &[]);
    assert!(!m.sees(v.version) && m.sees(w.version));
    m.oracle.crashed(Crash::Power, &[]);
    assert!(!m.sees(v.version) && m.sees(w.version), "it was read after the kill");
}

/// The client has abandoned it and does not wait for its reply.
#[test]
fn an_abandoned_write_never_lands_over_a_later_one() {
    let mut m = Model::new();
    let v = m.begin(Content::Data, false);
    let w = m.write();
    assert!(!m.sees(v.version) && m.sees(w));
    m.oracle.write_ended(&v, Ending::Failed);
    assert!(!m.sees(v.version) && m.sees(w));
}

#[test]
fn a_power_cut_may_bring_back_the_older_of_two_overlapping_writes() {
    let mut m = Model::new();
    let (v, w) = (m.begin(Content::Data, false), m.begin(Content::Data, false));
    m.oracle.write_ended(&v, Ending::Done);
    m.oracle.write_ended(&w, Ending::Done);
    assert!(m.sees(w.version) && !m.sees(v.version));
    m.oracle.crashed(Crash::Power, &[]);
    assert!(m.sees(v.version));
}

#[test]
fn a_slow_read_may_return_data_that_a_faster_one_no_longer_sees() {
    let mut m = Model::new();
    let a = m.write();
    let begun = m.oracle.read_begun(m.device);
    let b = m.write();
    assert!(m.sees(b) && !m.sees(a));
    let bytes = m.block(a);
    m.oracle.read_ended(m.device, begun, 1, Some(&bytes)).unwrap();
}

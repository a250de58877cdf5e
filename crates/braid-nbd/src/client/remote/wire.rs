//! What a session needs of its shard. The ring's [`RemoteCx`] implements it, and so does the in-memory shard of the
//! tests.

use braid_ring::{PartLimits, RemoteCx, RemotePart};

use super::dial::{self, Target};

/// The shard as a session sees it. [`RemoteCx`] documents the methods.
pub(super) trait Wire {
    fn now_ns(&self) -> u64;
    fn take(&mut self, limits: &PartLimits) -> Option<RemotePart>;
    fn waiting_since_ns(&self) -> Option<u64>;
    fn done(&mut self, part: &RemotePart, result: Result<(), i32>);
    fn fail_waiting(&mut self, errno: i32);
    fn give_up_reads(&mut self, now_ns: u64, limit_ns: u64) -> Option<u64>;
    /// Starts connecting. Returns false if that failed at once.
    fn dial(&mut self, target: &Target) -> bool;
    fn close(&mut self);
    fn input(&self, from: usize, to: usize) -> &[u8];
    fn input_mut(&mut self, from: usize, to: usize) -> &mut [u8];
    fn move_input(&mut self, from: usize, to: usize);
    fn receive(&mut self, at: usize) -> bool;
    fn receive_data(&mut self, part: &RemotePart, at: u64, len: u64) -> u64;
    fn copy_data(&mut self, part: &RemotePart, at: u64, from: usize, to: usize);
    fn put_data(&mut self, part: &RemotePart, at: u64, data: &[u8]);
    fn output_data(&mut self, part: &RemotePart, at: u64, len: usize, to: usize);
    fn output(&mut self) -> &mut [u8];
    fn room(&self) -> usize;
    fn gather(&mut self, from: usize, to: usize);
    fn gather_data(&mut self, part: &RemotePart);
    fn send(&mut self) -> bool;
    fn timer_at(&mut self, at_ns: u64) -> bool;
    /// Begins TLS: all further traffic is encrypted. Returns false if that is impossible.
    fn begin_tls(&mut self) -> bool {
        false
    }
}

impl Wire for RemoteCx<'_> {
    fn now_ns(&self) -> u64 {
        RemoteCx::now_ns(self)
    }
    fn take(&mut self, limits: &PartLimits) -> Option<RemotePart> {
        RemoteCx::take_part(self, limits)
    }
    fn waiting_since_ns(&self) -> Option<u64> {
        RemoteCx::waiting_since_ns(self)
    }
    fn done(&mut self, part: &RemotePart, result: Result<(), i32>) {
        RemoteCx::done(self, part, result);
    }
    fn fail_waiting(&mut self, errno: i32) {
        RemoteCx::fail_waiting(self, errno);
    }
    fn give_up_reads(&mut self, now_ns: u64, limit_ns: u64) -> Option<u64> {
        RemoteCx::give_up_reads(self, now_ns, limit_ns)
    }
    fn dial(&mut self, target: &Target) -> bool {
        dial::begin(target).is_ok_and(|socket| self.open(socket))
    }
    fn close(&mut self) {
        RemoteCx::close(self);
    }
    fn input(&self, from: usize, to: usize) -> &[u8] {
        RemoteCx::input(self, from, to)
    }
    fn input_mut(&mut self, from: usize, to: usize) -> &mut [u8] {
        RemoteCx::input_mut(self, from, to)
    }
    fn move_input(&mut self, from: usize, to: usize) {
        RemoteCx::move_input(self, from, to);
    }
    fn receive(&mut self, at: usize) -> bool {
        RemoteCx::receive(self, at)
    }
    fn receive_data(&mut self, part: &RemotePart, at: u64, len: u64) -> u64 {
        RemoteCx::receive_data(self, part, at, len)
    }
    fn copy_data(&mut self, part: &RemotePart, at: u64, from: usize, to: usize) {
        RemoteCx::copy_data(self, part, at, from, to);
    }
    fn put_data(&mut self, part: &RemotePart, at: u64, data: &[u8]) {
        RemoteCx::put_data(self, part, at, data);
    }
    fn output_data(&mut self, part: &RemotePart, at: u64, len: usize, to: usize) {
        RemoteCx::output_data(self, part, at, len, to);
    }
    fn output(&mut self) -> &mut [u8] {
        RemoteCx::output(self)
    }
    fn room(&self) -> usize {
        RemoteCx::room(self)
    }
    fn gather(&mut self, from: usize, to: usize) {
        RemoteCx::gather(self, from, to);
    }
    fn gather_data(&mut self, part: &RemotePart) {
        RemoteCx::gather_data(self, part);
    }
    fn send(&mut self) -> bool {
        RemoteCx::send(self)
    }
    fn timer_at(&mut self, at_ns: u64) -> bool {
        RemoteCx::timer_at(self, at_ns)
    }
}

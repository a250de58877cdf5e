//! A client by the file of an export, or by a loop device on it: system calls in threads of its own, several under way at a time.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::ReadWriteFlags;

use crate::attached::Loop;
use crate::client::Op;
use crate::oracle::{BLOCK, Content, write_block};
use crate::support::wait_for;

/// System calls that are under way at a time; more requests wait for their turn.
const THREADS: usize = 8;
/// Longest that threads are waited for. What they wait for fails when its daemon is gone.
const ENDING_MAX: Duration = Duration::from_secs(60);

/// How a file is opened.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// By a loop device with sectors of so many bytes.
    pub sector: Option<u64>,
    /// With `O_DIRECT`, which makes a difference at loop devices only.
    pub direct: bool,
    /// For writing, too.
    pub writes: bool,
}

/// Memory that begins at a whole block, as `O_DIRECT` wants it.
struct Memory {
    bytes: Vec<u8>,
    at: usize,
    len: usize,
}

impl Memory {
    fn of(len: usize, filled_with: u8) -> Memory {
        let bytes = vec![filled_with; len + BLOCK];
        let at = bytes.as_ptr().align_offset(BLOCK);
        Memory { bytes, at, len }
    }

    fn get(&self) -> &[u8] {
        &self.bytes[self.at..self.at + self.len]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.at..self.at + self.len]
    }
}

enum Work {
    Read,
    Write { memory: Memory, fua: bool },
    Punch,
    Zero,
    Sync,
}

struct Job {
    slot: u16,
    offset: u64,
    bytes: usize,
    work: Work,
}

/// What a system call has returned: what was read, or the number of an error.
pub struct Done {
    pub slot: u16,
    pub result: Result<Vec<u8>, u32>,
}

pub struct Opener {
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    next: u16,
    threads: Vec<JoinHandle<()>>,
    file: Arc<File>,
    path: String,
    // Dropped after the file that is open on it.
    device: Option<Loop>,
}

impl Opener {
    /// Opens the file at `path`, which has to be mounted.
    pub fn open(path: &str, manner: Manner) -> Opener {
        let device = manner.sector.map(|sector| Loop::on(path, sector, manner.writes));
        let at = device.as_ref().map_or(path, |device| device.path());
        let flags = if manner.direct { libc::O_DIRECT } else { 0 };
        let file = File::options().read(true).write(manner.writes).custom_flags(flags).open(at);
        let file = Arc::new(file.unwrap_or_else(|error| panic!("{at}: {error}")));
        let (jobs, queue) = channel::<Job>();
        let (finished, done) = channel::<Done>();
        let queue = Arc::new(Mutex::new(queue));
        let thread = |_: usize| {
            let (file, queue, finished) = (Arc::clone(&file), Arc::clone(&queue), finished.clone());
            std::thread::spawn(move || work(&file, &queue, &finished))
        };
        let threads = (0..THREADS).map(thread).collect();
        Opener { jobs: Some(jobs), done, next: 0, threads, file, path: path.to_owned(), device }
    }

    pub fn is_loop(&self) -> bool {
        self.device.is_some()
    }

    pub fn blocks(&self) -> u64 {
        // Of a device `fstat` does not tell the size.
        let end = rustix::fs::seek(&*self.file, SeekFrom::End(0));
        end.unwrap_or_else(|error| panic!("the end of {}: {error}", self.path)) / BLOCK as u64
    }

    /// Waits until the size that the file has now shows: a loop device has to be told.
    pub fn grows_to(&self, blocks: u64) {
        wait_for(&format!("{} to have {blocks} blocks", self.path), || {
            if let Some(device) = &self.device {
                device.set_capacity();
            }
            (self.blocks() == blocks).then_some(())
        });
    }

    /// Begins a request of whole blocks; gives its slot.
    pub fn begin(&mut self, op: Op, first: u64, count: u64, fua: bool) -> Option<u16> {
        let (offset, bytes) = (first * BLOCK as u64, count as usize * BLOCK);
        let work = match op {
            Op::Read => Work::Read,
            Op::Write(Content::Data { device, version }) => {
                let mut memory = Memory::of(bytes, 0);
                for (block, out) in (first..).zip(memory.get_mut().chunks_exact_mut(BLOCK)) {
                    write_block(device, block, version, out);
                }
                Work::Write { memory, fua }
            }
            Op::Write(Content::Zero) => Work::Zero,
            Op::Trim => Work::Punch,
            Op::Flush => Work::Sync,
        };
        let slot = self.next;
        self.next = self.next.wrapping_add(1);
        self.jobs.as_ref()?.send(Job { slot, offset, bytes, work }).ok()?;
        Some(slot)
    }

    /// What has returned; waits for one no longer than `limit`.
    pub fn take(&mut self, limit: Duration) -> Vec<Done> {
        let mut all: Vec<Done> = self.done.try_iter().collect();
        if all.is_empty() && !limit.is_zero() {
            all.extend(self.done.recv_timeout(limit).ok());
            all.extend(self.done.try_iter());
        }
        all
    }
}

impl Drop for Opener {
    /// Ends the threads, so that the file is closed with this value.
    fn drop(&mut self) {
        self.jobs = None;
        let start = Instant::now();
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && start.elapsed() < ENDING_MAX {
                std::thread::sleep(Duration::from_millis(2));
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

/// One thread: a job after another.
fn work(file: &File, queue: &Mutex<Receiver<Job>>, finished: &Sender<Done>) {
    loop {
        // One thread waits for a job, and the others for their turn.
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let result = perform(file, &job).map_err(|error| number_of(&error));
        if finished.send(Done { slot: job.slot, result }).is_err() {
            return;
        }
    }
}

/// The number of an error. What ends too early has none, and must not look like one that is expected.
fn number_of(error: &io::Error) -> u32 {
    error.raw_os_error().unwrap_or(libc::ENODATA) as u32
}

fn perform(file: &File, job: &Job) -> io::Result<Vec<u8>> {
    let (offset, bytes) = (job.offset, job.bytes as u64);
    let zero = |how: FallocateFlags| rustix::fs::fallocate(file, how | FallocateFlags::KEEP_SIZE, offset, bytes);
    match &job.work {
        Work::Read => {
            // Whatever a read does not fill is wrong, and not zeros.
            let mut memory = Memory::of(job.bytes, 0xdb);
            file.read_exact_at(memory.get_mut(), offset)?;
            return Ok(memory.get().to_vec());
        }
        Work::Write { memory, fua } => write_all(file, memory.get(), offset, *fua)?,
        Work::Punch => zero(FallocateFlags::PUNCH_HOLE)?,
        Work::Zero => zero(FallocateFlags::ZERO_RANGE)?,
        Work::Sync => file.sync_data()?,
    }
    Ok(Vec::new())
}

fn write_all(file: &File, mut data: &[u8], mut offset: u64, fua: bool) -> io::Result<()> {
    let flags = if fua { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
    while !data.is_empty() {
        let written = rustix::io::pwritev2(file, &[IoSlice::new(data)], offset, flags)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        data = &data[written..];
        offset += written as u64;
    }
    Ok(())
}

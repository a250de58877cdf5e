//! A client through the file of an export, or through a loop device on it: system calls in its own threads, several in
//! flight at a time.

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

/// System calls in flight at a time; further requests wait in the queue.
const THREADS: usize = 8;
/// Longest wait for the threads. Their system calls fail when the daemon is gone.
const ENDING_MAX: Duration = Duration::from_secs(60);

/// How a file is opened.
#[derive(Clone, Copy, Debug)]
pub struct OpenMode {
    /// Through a loop device with sectors of this size.
    pub sector: Option<u64>,
    /// With `O_DIRECT`, which matters only for loop devices.
    pub direct: bool,
    /// For writing as well.
    pub writes: bool,
}

/// Memory aligned to a block, as `O_DIRECT` requires.
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

/// The result of a system call: the data read, or an error number.
pub struct Done {
    pub slot: u16,
    pub result: Result<Vec<u8>, u32>,
}

pub struct FileClient {
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    next: u16,
    threads: Vec<JoinHandle<()>>,
    file: Arc<File>,
    path: String,
    // Dropped after the file that is open on it.
    device: Option<Loop>,
}

impl FileClient {
    /// Opens the file at `path`, which has to be mounted.
    pub fn open(path: &str, mode: OpenMode) -> FileClient {
        let device = mode.sector.map(|sector| Loop::on(path, sector, mode.writes));
        let at = device.as_ref().map_or(path, |device| device.path());
        let flags = if mode.direct { libc::O_DIRECT } else { 0 };
        let file = File::options().read(true).write(mode.writes).custom_flags(flags).open(at);
        let file = Arc::new(file.unwrap_or_else(|error| panic!("{at}: {error}")));
        let (jobs, queue) = channel::<Job>();
        let (finished, done) = channel::<Done>();
        let queue = Arc::new(Mutex::new(queue));
        let thread = |_: usize| {
            let (file, queue, finished) = (Arc::clone(&file), Arc::clone(&queue), finished.clone());
            std::thread::spawn(move || work(&file, &queue, &finished))
        };
        let threads = (0..THREADS).map(thread).collect();
        FileClient { jobs: Some(jobs), done, next: 0, threads, file, path: path.to_owned(), device }
    }

    pub fn is_loop(&self) -> bool {
        self.device.is_some()
    }

    pub fn blocks(&self) -> u64 {
        // `fstat` does not return the size of a device.
        let end = rustix::fs::seek(&*self.file, SeekFrom::End(0));
        end.unwrap_or_else(|error| panic!("the end of {}: {error}", self.path)) / BLOCK as u64
    }

    /// Waits until the client sees the file's new size. A loop device has to be notified.
    pub fn grows_to(&self, blocks: u64) {
        wait_for(&format!("{} to have {blocks} blocks", self.path), || {
            if let Some(device) = &self.device {
                device.set_capacity();
            }
            (self.blocks() == blocks).then_some(())
        });
    }

    /// Starts a request of whole blocks. Returns its slot.
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

    /// Returns the completed requests. Waits for one no longer than `limit`.
    pub fn take(&mut self, limit: Duration) -> Vec<Done> {
        let mut all: Vec<Done> = self.done.try_iter().collect();
        if all.is_empty() && !limit.is_zero() {
            all.extend(self.done.recv_timeout(limit).ok());
            all.extend(self.done.try_iter());
        }
        all
    }
}

impl Drop for FileClient {
    /// Ends the threads, so that dropping this value closes the file.
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

/// Runs jobs until the queue is closed.
fn work(file: &File, queue: &Mutex<Receiver<Job>>, finished: &Sender<Done>) {
    loop {
        // One thread waits for a job, and the others for the lock.
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let result = execute(file, &job).map_err(|error| number_of(&error));
        if finished.send(Done { slot: job.slot, result }).is_err() {
            return;
        }
    }
}

/// Returns the number of an error. A short read or write has none, and must not look like an expected error.
fn number_of(error: &io::Error) -> u32 {
    error.raw_os_error().unwrap_or(libc::ENODATA) as u32
}

fn execute(file: &File, job: &Job) -> io::Result<Vec<u8>> {
    let (offset, bytes) = (job.offset, job.bytes as u64);
    let zero = |how: FallocateFlags| rustix::fs::fallocate(file, how | FallocateFlags::KEEP_SIZE, offset, bytes);
    match &job.work {
        Work::Read => {
            // Bytes that the read does not fill are wrong data, and not zeros.
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

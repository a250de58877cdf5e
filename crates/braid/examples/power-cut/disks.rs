//! Disks with a volatile cache, served over NBD to the kernel's client: what was written and not flushed is theirs to lose. A cut
//! is of all of them at one moment, and leaves each with what was flushed, and with what chance has kept of the rest, in any
//! order and down to single sectors.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Error, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

const SECTOR: u64 = 512;
const CHUNK: u64 = 64 << 10;

/// What a disk has for certain, in memory, and what stands in its cache.
#[derive(Default)]
struct Disk {
    kept: BTreeMap<u64, Vec<u8>>,
    cached: HashMap<u64, [u8; SECTOR as usize]>,
}

impl Disk {
    fn read(&self, at: u64, out: &mut [u8]) {
        for (nth, sector) in (at / SECTOR..).zip(out.chunks_exact_mut(SECTOR as usize)) {
            match (self.cached.get(&nth), self.kept.get(&(nth * SECTOR / CHUNK))) {
                (Some(found), _) => sector.copy_from_slice(found),
                (None, Some(chunk)) => {
                    sector.copy_from_slice(&chunk[(nth * SECTOR % CHUNK) as usize..][..sector.len()])
                }
                (None, None) => sector.fill(0),
            }
        }
    }

    fn write(&mut self, at: u64, data: &[u8]) {
        for (nth, sector) in (at / SECTOR..).zip(data.chunks_exact(SECTOR as usize)) {
            self.cached.insert(nth, sector.try_into().expect("a sector"));
        }
    }

    /// What is in the cache of these sectors is on the disk.
    fn flush(&mut self, from: u64, to: u64) {
        if to - from > self.cached.len() as u64 {
            let all: Vec<u64> = self.cached.keys().copied().filter(|nth| (from..to).contains(nth)).collect();
            all.into_iter().for_each(|nth| self.keep(nth));
        } else {
            (from..to).for_each(|nth| self.keep(nth));
        }
    }

    fn keep(&mut self, nth: u64) {
        let Some(sector) = self.cached.remove(&nth) else { return };
        let chunk = self.kept.entry(nth * SECTOR / CHUNK).or_insert_with(|| vec![0; CHUNK as usize]);
        chunk[(nth * SECTOR % CHUNK) as usize..][..sector.len()].copy_from_slice(&sector);
    }

    /// What the disk is after a cut; how many sectors it had cached, and how many of them it has kept.
    fn cut(&self, path: &str, size: u64, way: u64, seed: u64) -> io::Result<(usize, usize)> {
        let file = File::create(path)?;
        file.set_len(size)?;
        for (nth, chunk) in &self.kept {
            file.write_all_at(chunk, nth * CHUNK)?;
        }
        let mut kept = 0;
        for (nth, sector) in &self.cached {
            // Nothing, everything, or some: most blocks of 4 KiB as a whole, and some torn.
            let block = draw(seed ^ (nth / 8));
            let yes = match way % 4 {
                0 => false,
                1 => true,
                _ if block.is_multiple_of(8) => draw(seed ^ (nth << 20)).is_multiple_of(2),
                _ => block % 2 == 1,
            };
            if yes {
                file.write_all_at(sector, nth * SECTOR)?;
                kept += 1;
            }
        }
        Ok((self.cached.len(), kept))
    }
}

fn draw(from: u64) -> u64 {
    let mut z = from.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x632b_e59b_d9b4_e019);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// All of them: a cut is of one moment.
type Disks = Arc<Mutex<BTreeMap<String, Disk>>>;

fn lock(disks: &Disks) -> MutexGuard<'_, BTreeMap<String, Disk>> {
    disks.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves disks of these names at `FOLDER/nbd`, and cuts at `FOLDER/cut`, for ever.
pub fn serve(folder: &str, size: u64, names: &[&str]) -> io::Result<String> {
    let disks: Disks = Arc::new(Mutex::new(names.iter().map(|&name| (name.to_owned(), Disk::default())).collect()));
    let cuts = UnixListener::bind(format!("{folder}/cut"))?;
    let clients = UnixListener::bind(format!("{folder}/nbd"))?;
    let all = Arc::clone(&disks);
    thread::spawn(move || {
        for asked in cuts.incoming().flatten() {
            if let Err(error) = one_cut(&asked, &all, size) {
                eprintln!("a cut failed: {error}");
            }
        }
    });
    for client in clients.incoming().flatten() {
        let disks = Arc::clone(&disks);
        thread::spawn(move || {
            if let Err(error) = talk(client, &disks, size) {
                eprintln!("a client is gone: {error}");
            }
        });
    }
    Ok(String::new())
}

/// Has all disks cut at once: a folder with their images, and with the acknowledgements of the same moment or before.
pub fn cut(folder: &str, acks: &str, to: &str, seed: u64) -> io::Result<String> {
    let mut server = UnixStream::connect(format!("{folder}/cut"))?;
    let there = |path: &str| Ok::<_, Error>(fs::canonicalize(path)?.to_string_lossy().into_owned());
    fs::create_dir_all(to)?;
    writeln!(server, "{}\n{}\n{seed}", there(acks)?, there(to)?)?;
    let mut said = String::new();
    server.read_to_string(&mut said)?;
    if said.is_empty() { Err(Error::other("the disks were not cut")) } else { Ok(said.trim_end().to_owned()) }
}

fn one_cut(asked: &UnixStream, disks: &Disks, size: u64) -> io::Result<()> {
    let mut lines = BufReader::new(asked).lines();
    let mut line = || lines.next().unwrap_or_else(|| Err(Error::other("half a question")));
    let (acks, to, seed) = (line()?, line()?, line()?.parse::<u64>().map_err(Error::other)?);
    // Nothing is answered while this is held: what was acknowledged by now was flushed before.
    let disks = lock(disks);
    for entry in fs::read_dir(&acks)? {
        let entry = entry?;
        fs::copy(entry.path(), format!("{to}/{}", entry.file_name().to_string_lossy()))?;
    }
    let mut said = String::new();
    for (nth, (name, disk)) in disks.iter().enumerate() {
        let (cached, kept) =
            disk.cut(&format!("{to}/{name}.img"), size, seed.wrapping_add(nth as u64), draw(seed << 8 | nth as u64))?;
        said += &format!("disk {name}: {kept} of {cached} sectors kept, ");
    }
    drop(disks);
    let mut asked = asked;
    writeln!(asked, "{said}seed {seed}")
}

const MAGIC: u64 = 0x4e42_444d_4147_4943; // NBDMAGIC
const OPTION: u64 = 0x4948_4156_454f_5054; // IHAVEOPT
const REPLY: u64 = 0x0003_e889_0455_65a9;
/// Flags, flush, FUA, trim, zeroes.
const ABILITIES: u16 = 1 | 4 | 8 | 32 | 64;

fn read_u16(client: &mut impl Read) -> io::Result<u16> {
    let mut bytes = [0; 2];
    client.read_exact(&mut bytes)?;
    Ok(u16::from_be_bytes(bytes))
}
fn read_u32(client: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    client.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}
fn read_u64(client: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    client.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}

/// The handshake of NBD's fixed new style: the name of the export, or none if the client has left.
fn handshake(client: &mut UnixStream, disks: &Disks, size: u64) -> io::Result<Option<String>> {
    client.write_all(&[MAGIC.to_be_bytes(), OPTION.to_be_bytes()].concat())?;
    client.write_all(&3u16.to_be_bytes())?;
    let short = read_u32(client)? & 2 != 0;
    loop {
        if read_u64(client)? != OPTION {
            return Err(Error::other("no option"));
        }
        let (option, length) = (read_u32(client)?, read_u32(client)?);
        let mut data = vec![0; length.min(65536) as usize];
        client.read_exact(&mut data)?;
        let answer = |client: &mut UnixStream, kind: u32, data: &[u8]| {
            let mut all = REPLY.to_be_bytes().to_vec();
            all.extend_from_slice(&option.to_be_bytes());
            all.extend_from_slice(&kind.to_be_bytes());
            all.extend_from_slice(&(data.len() as u32).to_be_bytes());
            all.extend_from_slice(data);
            client.write_all(&all)
        };
        match option {
            // EXPORT_NAME
            1 => {
                let mut all = [&size.to_be_bytes()[..], &ABILITIES.to_be_bytes()].concat();
                all.resize(if short { 10 } else { 134 }, 0);
                client.write_all(&all)?;
                return Ok(Some(String::from_utf8_lossy(&data).into_owned()));
            }
            // ABORT
            2 => return answer(client, 1, &[]).map(|()| None),
            // INFO, GO
            6 | 7 if data.len() >= 6 => {
                let length = u32::from_be_bytes(data[..4].try_into().expect("four bytes")) as usize;
                let name = String::from_utf8_lossy(data.get(4..4 + length).unwrap_or_default()).into_owned();
                if !lock(disks).contains_key(&name) {
                    answer(client, 1 << 31 | 6, b"no such disk")?;
                    continue;
                }
                answer(client, 3, &[&[0, 0][..], &size.to_be_bytes(), &ABILITIES.to_be_bytes()].concat())?;
                answer(client, 1, &[])?;
                if option == 7 {
                    return Ok(Some(name));
                }
            }
            _ => answer(client, 1 << 31 | 1, &[])?,
        }
    }
}

fn talk(mut client: UnixStream, disks: &Disks, size: u64) -> io::Result<()> {
    let Some(name) = handshake(&mut client, disks, size)? else { return Ok(()) };
    let mut data = Vec::new();
    loop {
        if read_u32(&mut client)? != 0x2560_9513 {
            return Err(Error::other("no request"));
        }
        let (flags, command) = (read_u16(&mut client)?, read_u16(&mut client)?);
        let (cookie, at, length) = (read_u64(&mut client)?, read_u64(&mut client)?, u64::from(read_u32(&mut client)?));
        data.clear();
        if command == 0 || command == 1 || command == 6 {
            data.resize(length as usize, 0);
        }
        if command == 1 {
            client.read_exact(&mut data)?;
        }
        let mut error = 0u32;
        {
            let mut disks = lock(disks);
            let disk = disks.get_mut(&name).ok_or_else(|| Error::other("no such disk"))?;
            match command {
                _ if at + length > size || !(at | length).is_multiple_of(SECTOR) => error = 22,
                0 => disk.read(at, &mut data),
                1 | 6 => {
                    disk.write(at, &data);
                    if flags & 1 != 0 {
                        disk.flush(at / SECTOR, (at + length) / SECTOR);
                    }
                }
                2 => return Ok(()),
                3 => disk.flush(0, size / SECTOR),
                // A disk need not do anything about what is trimmed.
                4 => {}
                _ => error = 22,
            }
        }
        let mut answer = 0x6744_6698u32.to_be_bytes().to_vec();
        answer.extend_from_slice(&error.to_be_bytes());
        answer.extend_from_slice(&cookie.to_be_bytes());
        if command == 0 && error == 0 {
            answer.extend_from_slice(&data);
        }
        client.write_all(&answer)?;
    }
}

//! A small, independent NBD client: its bytes are written from the protocol specification, and it can send requests
//! that no honest client would.

use std::io::{Error, ErrorKind, Read as _, Result, Write as _};
use std::os::unix::net::UnixStream;

use crate::support::PATIENCE;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISCONNECT: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const WRITE_ZEROES: u16 = 6;

pub const FUA: u16 = 1;

pub const EIO: u32 = 5;
pub const EINVAL: u32 = 22;

/// A connection past the handshake, with simple replies.
pub struct Client {
    pub stream: UnixStream,
    pub size_bytes: u64,
    next_handle: u64,
}

/// Connects, with time limits on all reads and writes.
pub fn connect(socket: &str) -> Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Reads the greeting and sends the flags of a current client: fixed newstyle, no zeroes.
pub fn greet(stream: &mut UnixStream) -> Result<()> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    if &greeting[..16] != b"NBDMAGICIHAVEOPT" {
        return Err(Error::new(ErrorKind::InvalidData, format!("greeting {greeting:?}")));
    }
    stream.write_all(&3u32.to_be_bytes())
}

/// Returns the bytes of one option.
pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// Returns the bytes of option GO for an export, without information requests.
pub fn option_go(export: &str) -> Vec<u8> {
    let data = [&(export.len() as u32).to_be_bytes()[..], export.as_bytes(), &0u16.to_be_bytes()].concat();
    option(7, &data)
}

/// Reads one reply to an option. Returns its type and data.
pub fn option_reply(stream: &mut UnixStream) -> Result<(u32, Vec<u8>)> {
    let mut head = [0; 20];
    stream.read_exact(&mut head)?;
    if head[..8] != 0x0003_e889_0455_65a9_u64.to_be_bytes() {
        return Err(Error::new(ErrorKind::InvalidData, format!("option reply {head:?}")));
    }
    let mut data = vec![0; u32::from_be_bytes(head[16..].try_into().expect("four bytes")) as usize];
    stream.read_exact(&mut data)?;
    Ok((u32::from_be_bytes(head[12..16].try_into().expect("four bytes")), data))
}

/// Returns the bytes of one request's header.
pub fn request(flags: u16, command: u16, handle: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(handle.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

/// Reads a simple reply. Returns its error and handle; the data of a read follow on the stream.
pub fn reply(stream: &mut UnixStream) -> Result<(u32, u64)> {
    let mut head = [0; 16];
    stream.read_exact(&mut head)?;
    if head[..4] != 0x6744_6698_u32.to_be_bytes() {
        return Err(Error::new(ErrorKind::InvalidData, format!("reply {head:?}")));
    }
    let error = u32::from_be_bytes(head[4..8].try_into().expect("four bytes"));
    Ok((error, u64::from_be_bytes(head[8..].try_into().expect("eight bytes"))))
}

impl Client {
    /// Connects to `export` on the Unix socket.
    pub fn open(socket: &str, export: &str) -> Result<Client> {
        let mut stream = connect(socket)?;
        greet(&mut stream)?;
        stream.write_all(&option_go(export))?;
        let mut size_bytes = None;
        loop {
            match option_reply(&mut stream)? {
                // NBD_REP_INFO with NBD_INFO_EXPORT
                (3, data) if data.len() == 12 && data[..2] == [0, 0] => {
                    size_bytes = Some(u64::from_be_bytes(data[2..10].try_into().expect("eight bytes")));
                }
                (3, _) => {}
                (1, _) => break,
                (kind, data) => {
                    let text = String::from_utf8_lossy(&data).into_owned();
                    return Err(Error::other(format!("GO answered {kind:#x}: {text}")));
                }
            }
        }
        let size_bytes = size_bytes.ok_or_else(|| Error::other("GO reported no size"))?;
        Ok(Client { stream, size_bytes, next_handle: 1 })
    }

    /// Sends one request without waiting for its reply. Returns its handle.
    pub fn send(&mut self, flags: u16, command: u16, offset: u64, length: u32, data: &[u8]) -> Result<u64> {
        let handle = self.next_handle;
        self.next_handle += 1;
        let mut bytes = request(flags, command, handle, offset, length);
        bytes.extend(data);
        self.stream.write_all(&bytes)?;
        Ok(handle)
    }

    /// Sends one request and waits for its reply; the server's error number is the error.
    pub fn call(&mut self, flags: u16, command: u16, offset: u64, length: u32, data: &[u8]) -> Result<()> {
        let handle = self.send(flags, command, offset, length, data)?;
        let (error, answered) = reply(&mut self.stream)?;
        assert_eq!(answered, handle, "the only request in flight is the one answered");
        if error == 0 { Ok(()) } else { Err(Error::from_raw_os_error(error as i32)) }
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.call(0, WRITE, offset, data.len() as u32, data)
    }

    pub fn write_fua(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.call(FUA, WRITE, offset, data.len() as u32, data)
    }

    pub fn flush(&mut self) -> Result<()> {
        self.call(0, FLUSH, 0, 0, &[])
    }

    pub fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>> {
        self.call(0, READ, offset, length as u32, &[])?;
        let mut data = vec![0; length];
        self.stream.read_exact(&mut data)?;
        Ok(data)
    }
}

/// Returns whether the server has closed this connection, or closes it within the read timeout.
pub fn is_closed(stream: &mut UnixStream) -> bool {
    let mut rest = [0; 4096];
    loop {
        match stream.read(&mut rest) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::ConnectionReset || error.kind() == ErrorKind::BrokenPipe,
        }
    }
}

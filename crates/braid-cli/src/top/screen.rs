//! The whole screen of a terminal, given back as it was however the program ends.

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{event, execute, queue};
use std::io::{self, Write};
use std::time::Duration;

/// A screen that is ours until this is dropped.
pub struct Screen(());

/// What the user did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Wants to leave.
    Quit,
    /// Wants it drawn anew, or changed the size of the screen.
    Redraw,
}

impl Screen {
    /// Takes the terminal of standard output.
    ///
    /// # Errors
    /// There is none, or it does not let itself be set.
    pub fn take() -> io::Result<Screen> {
        enable_raw_mode()?;
        let screen = Screen(());
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    /// Columns and rows.
    pub fn size() -> (usize, usize) {
        let (columns, rows) = size().unwrap_or((80, 24));
        (usize::from(columns.max(1)), usize::from(rows.max(1)))
    }

    /// Shows these lines; those that the screen has no room for are left out.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let (_, rows) = Screen::size();
        // In one piece, so that nothing flickers.
        let mut frame = Vec::new();
        for (row, line) in lines.iter().take(rows).enumerate() {
            queue!(frame, MoveTo(0, row as u16))?;
            frame.extend_from_slice(line.as_bytes());
            queue!(frame, Clear(ClearType::UntilNewLine))?;
        }
        if lines.len() < rows {
            queue!(frame, MoveTo(0, lines.len() as u16), Clear(ClearType::FromCursorDown))?;
        }
        let mut out = anstream::stdout().lock();
        out.write_all(&frame)?;
        out.flush()
    }

    /// Waits for the user for at most this long.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn key(&self, longest: Duration) -> io::Result<Option<Key>> {
        if !event::poll(longest)? {
            return Ok(None);
        }
        Ok(match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Release => None,
            Event::Key(key) => match key.code {
                KeyCode::Char('q' | 'Q') | KeyCode::Esc => Some(Key::Quit),
                KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Quit),
                KeyCode::Char('l' | ' ') => Some(Key::Redraw),
                _ => None,
            },
            Event::Resize(..) => Some(Key::Redraw),
            _ => None,
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing any more.
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

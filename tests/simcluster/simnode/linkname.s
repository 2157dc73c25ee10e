// Empty: it tells the compiler that newManagerImpl's body is elsewhere.

"""Below all our packages: the version, how threads wait, and the names of the packages."""

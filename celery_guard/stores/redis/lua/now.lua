-- with: states unit
return { ARGV[1], int(now) }

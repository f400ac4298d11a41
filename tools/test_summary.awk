# Reads CTest's LastTest.log files, shows what failing cases printed, and ends with the line "N passed, N failed[, N skipped]".
# A case that began and never ended (a crash, a time limit) counts as failed, and so does a binary that failed without naming a case.
function close_case(what) {
  if (running != "") {
    note_failure(running " (" what ")", output)
    running = ""
  }
}
function not_run() { return due > seen ? "; " due - seen " more not run" : "" }
function note_failure(name, text) {
  failures[++failed] = name
  details[failed] = text
}
/^[0-9]+\/[0-9]+ Testing: / {
  room = $3
  split(FILENAME, parts, "/")
  folder = parts[length(parts) - 1]
  failed_before = failed
  seen = due = 0
  output = ""
}
/^\[==========\] Running [0-9]+ test/ { due = $3 }
/^\[ RUN      \] / {
  close_case("did not end")
  running = folder " " room "/" $4
  output = ""
  seen++
  next
}
/^\[       OK \] / { passed++; running = ""; next }
/^\[  SKIPPED \] .* \([0-9]+ ms\)$/ {
  if (running != "") {
    skipped++
    reason = output
    gsub(/\n/, " ", reason)
    skips[skipped] = running ": " reason
    running = ""
  }
  next
}
/^\[  FAILED  \] .* \([0-9]+ ms\)$/ {
  if (running != "") note_failure(running, output)
  running = ""
  next
}
/^Test (Passed|Failed)\.$/ {
  if (running != "") {
    close_case("ended the process" not_run())
  } else if ($2 == "Failed." && failed == failed_before) {
    note_failure(folder " " room " (failed without naming a case)", output)
  }
  next
}
/^Test time = |^<end of output>$|^----------+$/ { next }
{ if (length(output) < 20000) output = output $0 "\n" }
END {
  for (i = 1; i <= failed; i++) printf "\n--- %s\n%s", failures[i], details[i]
  if (skipped) print ""
  for (i = 1; i <= skipped; i++) print "skipped: " skips[i]
  if (failed) print ""
  for (i = 1; i <= failed; i++) print "FAILED: " failures[i]
  if (passed + failed == 0) print "no test ran"
  printf "%d passed, %d failed%s\n", passed, failed, skipped ? ", " skipped " skipped" : ""
  exit (failed > 0 || passed == 0)
}
